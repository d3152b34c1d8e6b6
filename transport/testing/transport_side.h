#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/clock.h"
#include "transport/testing/recording_handler.h"
#include "transport/testing/transport_contract.h"
#include "transport/transport.h"

namespace forebay::testing {

// One process of a test, so to speak: a transport, its recording handler, and what it sent.
//
// It owns the payloads that it sends, and scribbles over each as soon as OnSent gives it back (over
// the header as soon as Send returns): a transport that still reads them delivers wrong bytes,
// which the receiver's handler notices.
//
// Borrows  the world.
// Threads  one.
class TransportSide {
 public:
  TransportSide(TransportWorld& world, std::string name, const TransportOptions& options = {});
  ~TransportSide();
  TransportSide(const TransportSide&) = delete;
  TransportSide& operator=(const TransportSide&) = delete;

  // True if anything was done. Does nothing once killed.
  bool Poll();
  bool alive() const { return transport_ != nullptr; }
  // As if the process crashed. Nothing may be called back.
  void Kill();

  // Both fail the test, and give "" or 0, where the transport refuses.
  std::string Listen();
  EndpointId Connect(const std::string& address, Nanos within = 10 * kSecond);
  // The token of the send, for handler().sent().
  uint64_t Send(EndpointId endpoint, const TestMessage& message);
  // The same; the payload is put together in memory that the transport lends, where it lends any.
  uint64_t SendLent(EndpointId endpoint, const TestMessage& message);
  // A header without payload and token, so without OnSent.
  void SendBare(EndpointId endpoint, std::string header);
  // A message of a new id with `range_bytes` as payload.
  uint64_t SendPayload(EndpointId endpoint, const std::vector<size_t>& range_bytes);

  Transport& transport() { return *transport_; }
  RecordingHandler& handler() { return handler_; }
  const std::string& name() const { return name_; }

  uint64_t lent_count() const { return lent_count_; }

  // Runs after the side's own OnSent work.
  std::function<void(EndpointId, uint64_t token, const absl::Status&)> on_sent;

 private:
  TransportWorld& world_;
  const std::string name_;
  RecordingHandler handler_;
  std::map<uint64_t, std::vector<std::vector<std::byte>>> payloads_;  // by token, until OnSent
  std::vector<std::vector<std::byte>> scribbled_;                     // stay mapped
  uint64_t lent_count_ = 0;
  std::unique_ptr<Transport> transport_;
};

// Polls `sides` in turn until `done`, and lets time pass where nothing is to do. A failure that
// says what was awaited, and where each side stands, after the world's patience.
::testing::AssertionResult RunUntil(TransportWorld& world, absl::Span<TransportSide* const> sides,
                                    const char* awaited, const std::function<bool()>& done);
// Polls `sides` for `time` of the world, and never less than `rounds` rounds.
void RunFor(TransportWorld& world, absl::Span<TransportSide* const> sides, Nanos time,
            int rounds = 50);

// A listening side and one that connected to it.
class ConnectedPair {
 public:
  explicit ConnectedPair(TransportWorld& world, const TransportOptions& options = {});

  // Fails the test, and is false, where the two do not get together.
  bool Connect();
  ::testing::AssertionResult RunUntil(const char* awaited, const std::function<bool()>& done);
  void RunFor(Nanos time, int rounds = 50);

  TransportSide server;
  TransportSide client;
  std::string address;
  EndpointId at_server = 0;  // the newest pair of endpoints
  EndpointId at_client = 0;

 private:
  TransportWorld& world_;
};

// An id that no message of this process had before.
uint64_t NextMessageId();

}  // namespace forebay::testing

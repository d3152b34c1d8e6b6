#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include "absl/types/span.h"
#include "base/clock.h"
#include "transport/transport.h"

// The contract suite: what transport/transport.h promises, as tests that every back end must pass.
//
// A back end hands in a TransportWorld and instantiates the suite in its own x_test.cc:
//
//   class TcpWorld final : public forebay::testing::SystemTransportWorld {
//    public:
//     std::unique_ptr<Transport> Make(TransportHandler& handler,
//                                     const TransportOptions& options) override {…}
//     std::string ListenAddress() override { return "tcp:127.0.0.1:0"; }
//     std::string NobodyAddress() override { return "tcp:127.0.0.1:1"; }
//   };
//   FB_INSTANTIATE_TRANSPORT_CONTRACT(
//       Tcp, ::testing::Values(forebay::testing::TransportContractParam{
//                "plain", [] { return std::make_unique<TcpWorld>(); }}));
//
// and links forebay::transport_contract (TEST_DEPS of forebay_library). Each test makes a world of
// its own. All transports of a world live in the test's one thread, which polls them in turn: so
// neither side may wait for the other inside Listen, Connect, Send, Close, Poll or its destructor.
//
// What the suite asks beyond the words of transport.h, so that callers can rely on it:
//   * A header of 0 or of more than kHeaderBytesMax bytes, or a payload of more than
//     kPayloadBytesMax, gives OnSent(INVALID_ARGUMENT); the endpoint stays open.
//   * A full send queue gives OnSent(RESOURCE_EXHAUSTED); the endpoint stays open.
//   * Connect() to an address of another scheme fails in the call; so does Listen().
//   * Listen() where somebody listens already fails in the call, with ALREADY_EXISTS or
//   UNAVAILABLE.
//   * With endpoints_max endpoints open, Connect() gives RESOURCE_EXHAUSTED in the call, or
//   OnClosed
//     with it; a peer over the limit is turned away: its own side sees OnClosed.
//   * Send() before OnConnected is allowed: queued, or handed back with UNAVAILABLE.
//   * Close() of an unknown or closed endpoint does nothing. Close() of an endpoint that still
//     connects ends in OnClosed. After Close() no OnConnected, OnMessage or OnLanded(OK) comes.
//   * OnClosed after our own Close() has CANCELLED or OK; after the peer's Close(), any error or
//   OK.
//   * Landings that are in flight when an endpoint dies are handed back with an error.
//   * A destructor calls nobody.
namespace forebay::testing {

// What a back end can do. Everything is on by default; turn off only what the medium cannot give,
// and say why where you do.
struct TransportTraits {
  // PrepareToSleep gives descriptors that wake a sleeper. Not so in virtual time.
  bool wakes_by_descriptor = true;
  // A live peer that is never polled is noticed after peer_timeout, when we have sent to it.
  bool notices_silence = true;
  // Somebody must be told within peer_timeout + slack.
  Nanos slack = 3 * kSecond;
  // Bounds of every wait, by the world's clock.
  Nanos patience = 20 * kSecond;
};

// One back end in one setting, for one test. Makes transports that can reach each other.
class TransportWorld {
 public:
  virtual ~TransportWorld() = default;

  // A transport of its own identity, as if of another process.
  virtual std::unique_ptr<Transport> Make(TransportHandler& handler,
                                          const TransportOptions& options) = 0;
  // An address for Listen(), free each time this is called ("tcp:127.0.0.1:0").
  virtual std::string ListenAddress() = 0;
  // A well formed address where nobody listens.
  virtual std::string NobodyAddress() = 0;
  // The time to hand to Poll().
  virtual Nanos Now() = 0;
  // Called when a round of polls of `transports` did nothing: lets time pass, a little.
  virtual void Idle(absl::Span<Transport* const> transports) = 0;
  // Ends `transport` as a crash of its process would, as far as one process can show it.
  virtual void Kill(std::unique_ptr<Transport> transport) { transport.reset(); }

  virtual TransportTraits traits() const { return {}; }
  // Counts of a transport that Make() gave, where the back end keeps them; else nullptr.
  virtual const TransportCounts* CountsOf(const Transport&) const { return nullptr; }
};

// A world in real time. Idle() sleeps in poll(2) on what PrepareToSleep gave, at most 1 ms.
class SystemTransportWorld : public TransportWorld {
 public:
  Nanos Now() override;
  void Idle(absl::Span<Transport* const> transports) override;

 private:
  uint64_t idle_rounds_ = 0;
};

struct TransportContractParam {
  std::string name;  // letters and digits: part of the test's name
  std::function<std::unique_ptr<TransportWorld>()> make;
};

inline void PrintTo(const TransportContractParam& param, std::ostream* out) { *out << param.name; }

// The fixture; its tests are in transport/testing/*.cc.
class TransportContractTest : public ::testing::TestWithParam<TransportContractParam> {
 protected:
  TransportContractTest() : world_(GetParam().make()) {}
  TransportWorld& world() { return *world_; }

 private:
  std::unique_ptr<TransportWorld> world_;
};

// Keeps the linker from dropping the tests of a static library.
bool LinkTransportContract();

}  // namespace forebay::testing

#define FB_INSTANTIATE_TRANSPORT_CONTRACT(prefix, ...)                         \
  [[maybe_unused]] static const bool fb_transport_contract_##prefix =          \
      ::forebay::testing::LinkTransportContract();                             \
  namespace forebay::testing {                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                    \
      prefix, TransportContractTest, __VA_ARGS__,                              \
      [](const ::testing::TestParamInfo<TransportContractParam>& param_info) { \
        return param_info.param.name;                                          \
      });                                                                      \
  }                                                                            \
  static_assert(true, "a semicolon follows")

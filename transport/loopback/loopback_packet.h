#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transport/transport.h"

namespace forebay {

// What one LoopbackTransport sends another. Private to the folder.
//
// A message goes as kBegin with its header; its receiver answers kGo once it has a landing, the
// payload follows as kFragment, each round of arrivals is answered by kProgress, and the end by
// kDone. A small payload may ride in kBegin.
struct LoopbackPacket {
  enum class Kind : uint8_t {
    kOpen = 1,
    kAccept,
    kRefuse,
    kBegin,
    kGo,
    kFragment,
    kProgress,
    kDone,
    kPing,
    kPong,
    kClose,
    kReset,  // there is no such endpoint (any more)
  };

  Kind kind = Kind::kPing;
  uint64_t from_node = 0;
  uint64_t to_node = 0;
  EndpointId from_endpoint = 0;
  EndpointId to_endpoint = 0;    // 0 while unknown to the sender
  uint64_t message = 0;          // counts from 1 at each endpoint
  uint64_t offset = 0;           // of kFragment's first byte; bytes landed for kProgress
  uint64_t payload_bytes = 0;    // kBegin: of the whole message
  std::string header;            // kBegin
  std::vector<std::byte> bytes;  // kFragment, or the payload of an eager kBegin
  Nanos due = 0;                 // set by the network

  bool carries_payload() const { return !bytes.empty(); }
};

}  // namespace forebay

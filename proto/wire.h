#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/frame_header.h"
#include "base/page_key.h"
#include "base/random.h"
#include "base/wire_version.h"

// The messages of the data plane: fixed little-endian structs in the header of a transport message;
// frames' payloads ride as the message's payload. docs/wire.md has the tables, wire_test.cc the
// golden bytes. Parsing checks every length before it reads and every count against its limit; what
// does not fit is INVALID_ARGUMENT, and the receiver closes the endpoint.
namespace forebay::wire {

inline constexpr uint16_t kMagic = 0xFB01;

// Limits of one message.
inline constexpr uint32_t kKeysMax = 1024;  // keys in a Lookup, Offer or Subscribe
inline constexpr uint32_t kGetItemsMax = 512;
inline constexpr uint32_t kPutItemsMax = 256;
inline constexpr uint32_t kLocationsMax = 2048;  // SlotLocations in a LookupReply
inline constexpr uint32_t kLeaseMsMax = 30'000;
inline constexpr uint32_t kSubscribeMsMax = 600'000;
inline constexpr uint32_t kProbeBytesMax = 16u << 20;

enum class Kind : uint8_t {
  kHello = 1,
  kHelloReply = 2,
  kLookup = 3,
  kLookupReply = 4,
  kRelease = 5,
  kReleaseReply = 6,
  kGet = 7,
  kGetData = 8,
  kPut = 9,
  kPutReply = 10,
  kOffer = 11,
  kOfferReply = 12,
  kSubscribe = 13,
  kSubscribeEvent = 14,
  kCancel = 15,
  kPing = 16,
  kPong = 17,
  kReportBad = 18,
  kRenew = 19,
  kRenewReply = 20,
  kError = 21,
  kProbe = 22,
  kProbeReply = 23,
};

// First in every message.
struct Head {
  uint16_t magic = kMagic;
  uint8_t version = static_cast<uint8_t>(kWireVersionMax);
  uint8_t kind = 0;
  uint32_t body_bytes = 0;  // after this head; must equal what arrived
  uint64_t op = 0;          // chosen by the asker, echoed in answers
};
static_assert(sizeof(Head) == 16);

// Binds an endpoint to a session that was opened over the control plane. First message of a client;
// anything else before it closes the endpoint.
struct Hello {
  Uint128Bytes session{};
  Uint128Bytes boot_epoch{};  // of the daemon that opened the session: another one refuses
  uint32_t features = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Hello) == 40);

struct HelloReply {
  uint32_t status = 0;  // absl::StatusCode
  uint32_t features = 0;
  Uint128Bytes boot_epoch{};
};
static_assert(sizeof(HelloReply) == 24);

// Lookup flags.
inline constexpr uint32_t kWantLocations = 1;  // answer where the parts rest in shared regions
inline constexpr uint32_t kProbe = 2;  // no lease; never extends one, never touches the policy

// Followed by key_count keys, a chain in order (with gaps where other daemons hold page groups).
struct Lookup {
  uint32_t namespace_id = 0;
  uint32_t flags = 0;
  uint32_t lease_ms = 0;  // 1 to kLeaseMsMax unless kProbe
  uint32_t key_count = 0;
};
static_assert(sizeof(Lookup) == 16);

// Followed by page_count class masks (u8 each), padded to 8 bytes, then, where asked for and where
// they fit kLocationsMax, location_count SlotLocations: for each leading page all its parts in
// order.
struct LookupReply {
  uint32_t status = 0;
  uint32_t page_count = 0;  // leading pages with a complete full class; a miss is 0, not an error
  uint64_t lease = 0;       // 0 exactly when nothing was leased
  uint32_t lease_ms = 0;    // what was granted
  uint32_t queue_us = 0;    // the daemon's own estimate of waiting before a get would start
  uint32_t location_count = 0;  // page_count' * parts for the first page_count' pages
  uint32_t parts = 0;           // of a page of this namespace
};
static_assert(sizeof(LookupReply) == 32);

// Where a frame rests in a shared region. A part that is absent has frame_bytes 0.
struct SlotLocation {
  uint32_t region = 0;
  uint32_t frame_bytes = 0;  // header and payload
  uint64_t offset = 0;
  uint64_t generation = 0;
};
static_assert(sizeof(SlotLocation) == 24);

struct Release {
  uint64_t lease = 0;
  uint32_t keep_pages = 0;  // leading pages that stay leased; 0 ends the lease
  uint32_t flags = 0;       // kNoReply
};
static_assert(sizeof(Release) == 16);
inline constexpr uint32_t kNoReply = 1;

struct ReleaseReply {
  uint32_t status = 0;
  uint32_t valid = 0;  // 1: the lease was live and no leased slot ever left its granted generation
};
static_assert(sizeof(ReleaseReply) == 8);

struct Renew {
  uint64_t lease = 0;
  uint32_t lease_ms = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Renew) == 16);
using RenewReply = ReleaseReply;

// Followed by item_count GetItems.
struct Get {
  uint32_t namespace_id = 0;
  uint32_t item_count = 0;
  uint32_t deadline_ms = 0;  // the daemon drops what it cannot start by then; 0: none
  uint32_t reserved = 0;
};
static_assert(sizeof(Get) == 16);

struct GetItem {
  PageKey key;
  uint16_t part = 0;
  uint16_t reserved = 0;
  uint32_t payload_bytes_max = 0;  // what the reader has room for; a larger frame is a miss
};
static_assert(sizeof(GetItem) == 40);

// One or several answer a Get; each item of it is answered exactly once. Followed by item_count
// GetDataItems; the payload is the payloads of the OK ones, in order.
struct GetData {
  uint32_t item_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(GetData) == 8);

struct GetDataItem {
  uint32_t item = 0;    // index in the Get
  uint32_t status = 0;  // OK: a frame; NOT_FOUND: a miss; other codes: why not
  FrameHeader header;   // zero bytes unless OK
};
static_assert(sizeof(GetDataItem) == 72);

// Followed by item_count PutItems; the payload is their payloads, in order.
struct Put {
  uint32_t namespace_id = 0;
  uint32_t item_count = 0;
  uint32_t flags = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(Put) == 16);

struct PutItem {
  PageKey key;
  PageKey parent;
  uint16_t part = 0;
  uint16_t flags = 0;
  uint32_t reserved = 0;
  FrameHeader header;
};
static_assert(sizeof(PutItem) == 136);

// Followed by item_count u32 status codes: OK: stored; ALREADY_EXISTS: here before, which is
// success; RESOURCE_EXHAUSTED, DATA_LOSS, INVALID_ARGUMENT: not stored, and why.
struct PutReply {
  uint32_t status = 0;
  uint32_t item_count = 0;
};
static_assert(sizeof(PutReply) == 8);

// Which parts would a publisher have to send? Followed by key_count keys.
struct Offer {
  uint32_t namespace_id = 0;
  uint32_t key_count = 0;
};
static_assert(sizeof(Offer) == 8);

// Followed, for each key, by ceil(parts / 8) bytes: bit p set means that part p is wanted.
struct OfferReply {
  uint32_t status = 0;
  uint32_t key_count = 0;
  uint32_t parts = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(OfferReply) == 16);

// Waits until all key_count pages are complete. Followed by the keys. A SubscribeEvent comes at
// once and whenever the number of leading complete pages grows; the last has `final` set.
struct Subscribe {
  uint32_t namespace_id = 0;
  uint32_t key_count = 0;
  uint32_t deadline_ms = 0;  // 1 to kSubscribeMsMax
  uint32_t reserved = 0;
};
static_assert(sizeof(Subscribe) == 16);

struct SubscribeEvent {
  uint32_t status = 0;  // OK, or DEADLINE_EXCEEDED in the final one
  uint32_t page_count = 0;
  uint32_t final = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(SubscribeEvent) == 16);

// The asker has given up on operation `target`. No answer; what is under way may still arrive.
struct Cancel {
  uint64_t target = 0;
};
static_assert(sizeof(Cancel) == 8);

// Measures the path: answered by a ProbeReply with so many zero bytes of payload.
struct Probe {
  uint32_t reply_bytes = 0;  // to kProbeBytesMax
  uint32_t reserved = 0;
};
static_assert(sizeof(Probe) == 8);

// A reader found a frame whose bytes do not match. The daemon looks for itself.
struct ReportBad {
  uint32_t namespace_id = 0;
  uint16_t part = 0;
  uint16_t reserved = 0;
  PageKey key;
  uint64_t generation = 0;  // 0 when unknown
};
static_assert(sizeof(ReportBad) == 48);

// Answers a request that was refused whole. Followed by text_bytes of text for people.
struct Error {
  uint32_t status = 0;
  uint32_t text_bytes = 0;
};
static_assert(sizeof(Error) == 8);

// Builds a message header: a head, a fixed body, then arrays. Take() fills in the lengths.
class Writer {
 public:
  template <typename Body>
  Writer(Kind kind, uint64_t op, const Body& body) {
    static_assert(std::is_trivially_copyable_v<Body>);
    Head head;
    head.kind = static_cast<uint8_t>(kind);
    head.op = op;
    Append(&head, sizeof(head));
    Append(&body, sizeof(body));
  }
  template <typename T>
  Writer& Array(absl::Span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    Append(values.data(), values.size() * sizeof(T));
    return *this;
  }
  Writer& PadTo8() {
    while (bytes_.size() % 8 != 0) bytes_.push_back(std::byte{0});
    return *this;
  }
  // The message's header, ready for OutgoingMessage.
  Bytes Take() {
    const uint32_t body_bytes = static_cast<uint32_t>(bytes_.size() - sizeof(Head));
    std::memcpy(bytes_.data() + offsetof(Head, body_bytes), &body_bytes, sizeof(body_bytes));
    return Bytes(bytes_);
  }

 private:
  void Append(const void* data, size_t bytes) {
    if (bytes == 0) return;
    const size_t at = bytes_.size();
    bytes_.resize(at + bytes);
    std::memcpy(bytes_.data() + at, data, bytes);
  }
  std::vector<std::byte> bytes_;
};

// Reads one, in the order in which it was written.
class Reader {
 public:
  // INVALID_ARGUMENT: too short, wrong magic, body_bytes differs. FAILED_PRECONDITION: a version
  // outside [kWireVersionMin, kWireVersionMax], naming both.
  static absl::StatusOr<Reader> Of(Bytes header);

  const Head& head() const { return head_; }
  Kind kind() const { return static_cast<Kind>(head_.kind); }

  template <typename Body>
  absl::Status Read(Body* body) {
    static_assert(std::is_trivially_copyable_v<Body>);
    return ReadBytes(body, sizeof(Body));
  }
  // Reads `count` values after checking that they are there. `count` is checked against `max`
  // first.
  template <typename T>
  absl::Status ReadArray(uint32_t count, uint32_t max, std::vector<T>* values) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (absl::Status status = CheckCount(count, max, sizeof(T)); !status.ok()) return status;
    values->resize(count);
    return ReadBytes(values->data(), size_t{count} * sizeof(T));
  }
  absl::Status SkipPadTo8();
  // INVALID_ARGUMENT if bytes are left over.
  absl::Status Finish() const;

 private:
  absl::Status ReadBytes(void* to, size_t bytes);
  absl::Status CheckCount(uint32_t count, uint32_t max, size_t each) const;

  Bytes rest_;
  size_t taken_ = 0;
  Head head_;
};

// The body of a kError, as the status that it tells of: `*told`.
absl::Status ReadError(Reader& reader, absl::Status* told);

}  // namespace forebay::wire

// Messages of the data plane of every kind: a parse that succeeds has read every byte of the
// message and nothing else, so that writing what it found gives the message again.

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "proto/wire.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"
#include "transport/transport.h"

namespace forebay::fuzz {
namespace {

using wire::Kind;
using wire::Reader;
using wire::Writer;

using Message = std::vector<std::byte>;

Message MessageOf(Bytes bytes) { return {bytes.begin(), bytes.end()}; }

// An array that was refused has read nothing, one that was not has exactly what was asked for.
template <typename Item>
absl::Status ReadItems(Reader& reader, uint32_t count, uint32_t max, std::vector<Item>* items) {
  absl::Status status = reader.ReadArray(count, max, items);
  FB_CHECK(status.ok() ? items->size() == count && count <= max : items->empty());
  return status;
}

// What a kind of message looks like: for building one, and for reading and writing one again.
struct Form {
  Kind kind = Kind::kHello;
  absl::StatusOr<Message> (*rewrite)(Reader& reader) = nullptr;
  // Makes the counts in a message fit its length: afterwards it must be read, whatever it holds.
  void (*fit)(Message& message) = nullptr;
  // Of a list: as long as one may be, and what one item more needs.
  size_t bytes_max = 0;
  size_t item_bytes = 0;
};

// A message that is a head alone.
absl::StatusOr<Message> RewriteHead(Reader& reader) {
  FB_RETURN_IF_ERROR(reader.Finish());
  wire::Head head;
  head.kind = reader.head().kind;
  head.op = reader.head().op;
  return MessageOf(AsBytes(&head, sizeof(head)));
}

template <size_t kBodyBytes>
void FitBody(Message& message) {
  message.resize(sizeof(wire::Head) + kBodyBytes);
}

template <typename Body>
absl::StatusOr<Message> RewriteBody(Reader& reader) {
  Body body;
  FB_RETURN_IF_ERROR(reader.Read(&body));
  FB_RETURN_IF_ERROR(reader.Finish());
  return MessageOf(Writer(reader.kind(), reader.head().op, body).Take());
}

template <typename Body>
constexpr Form BodyForm(Kind kind) {
  return {kind, RewriteBody<Body>, FitBody<sizeof(Body)>};
}

template <typename Body, typename Item, uint32_t Body::*kCount, uint32_t kMax>
struct ListForm {
  static absl::StatusOr<Message> Rewrite(Reader& reader) {
    Body body;
    std::vector<Item> items;
    FB_RETURN_IF_ERROR(reader.Read(&body));
    FB_RETURN_IF_ERROR(ReadItems(reader, body.*kCount, kMax, &items));
    FB_RETURN_IF_ERROR(reader.Finish());
    Writer writer(reader.kind(), reader.head().op, body);
    return MessageOf(writer.Array<Item>(items).Take());
  }

  static constexpr size_t kItemsAt = sizeof(wire::Head) + sizeof(Body);

  static void Fit(Message& message) {
    message.resize(std::max(message.size(), kItemsAt));
    const size_t count = (message.size() - kItemsAt) / sizeof(Item);
    message.resize(kItemsAt + count * sizeof(Item));
    Body body;
    std::memcpy(&body, message.data() + sizeof(wire::Head), sizeof(body));
    body.*kCount = static_cast<uint32_t>(count);
    std::memcpy(message.data() + sizeof(wire::Head), &body, sizeof(body));
  }

  static constexpr Form Of(Kind kind) {
    return {kind, Rewrite, Fit, kItemsAt + size_t{kMax} * sizeof(Item), sizeof(Item)};
  }
};

absl::StatusOr<Message> RewriteLookupReply(Reader& reader) {
  wire::LookupReply reply;
  std::vector<uint8_t> masks;
  std::vector<wire::SlotLocation> locations;
  FB_RETURN_IF_ERROR(reader.Read(&reply));
  FB_RETURN_IF_ERROR(ReadItems(reader, reply.page_count, wire::kKeysMax, &masks));
  FB_RETURN_IF_ERROR(reader.SkipPadTo8());
  FB_RETURN_IF_ERROR(ReadItems(reader, reply.location_count, wire::kLocationsMax, &locations));
  FB_RETURN_IF_ERROR(reader.Finish());
  Writer writer(reader.kind(), reader.head().op, reply);
  writer.Array<uint8_t>(masks).PadTo8().Array<wire::SlotLocation>(locations);
  return MessageOf(writer.Take());
}

constexpr size_t PaddedTo8(size_t bytes) { return (bytes + 7) / 8 * 8; }

void FitLookupReply(Message& message) {
  constexpr size_t kMasksAt = sizeof(wire::Head) + sizeof(wire::LookupReply);
  message.resize(std::max(message.size(), kMasksAt));
  wire::LookupReply reply;
  std::memcpy(&reply, message.data() + sizeof(wire::Head), sizeof(reply));
  reply.page_count %= 32;
  const size_t locations_at = kMasksAt + PaddedTo8(reply.page_count);
  message.resize(std::max(message.size(), locations_at));
  const size_t count = std::min<size_t>(
      (message.size() - locations_at) / sizeof(wire::SlotLocation), wire::kLocationsMax);
  message.resize(locations_at + count * sizeof(wire::SlotLocation));
  reply.location_count = static_cast<uint32_t>(count);
  std::memcpy(message.data() + sizeof(wire::Head), &reply, sizeof(reply));
}

// The asker knows how many keys and parts it asked about; here the reply's word stands for that.
absl::StatusOr<Message> RewriteOfferReply(Reader& reader) {
  wire::OfferReply reply;
  std::vector<uint8_t> bits;
  FB_RETURN_IF_ERROR(reader.Read(&reply));
  if (reply.key_count > wire::kKeysMax || reply.parts > UINT16_MAX) {
    return absl::InvalidArgumentError("an answer to no offer");
  }
  const uint32_t bytes = reply.key_count * ((reply.parts + 7) / 8);
  FB_RETURN_IF_ERROR(ReadItems(reader, bytes, bytes, &bits));
  FB_RETURN_IF_ERROR(reader.Finish());
  Writer writer(reader.kind(), reader.head().op, reply);
  return MessageOf(writer.Array<uint8_t>(bits).Take());
}

void FitOfferReply(Message& message) {
  message.resize(std::max(message.size(), sizeof(wire::Head) + sizeof(wire::OfferReply)));
  wire::OfferReply reply;
  std::memcpy(&reply, message.data() + sizeof(wire::Head), sizeof(reply));
  reply.key_count %= 16;
  reply.parts %= 64;
  message.resize(sizeof(wire::Head) + sizeof(reply) +
                 size_t{reply.key_count} * ((reply.parts + 7) / 8));
  std::memcpy(message.data() + sizeof(wire::Head), &reply, sizeof(reply));
}

constexpr Form kForms[] = {
    BodyForm<wire::Hello>(Kind::kHello),
    BodyForm<wire::HelloReply>(Kind::kHelloReply),
    ListForm<wire::Lookup, PageKey, &wire::Lookup::key_count, wire::kKeysMax>::Of(Kind::kLookup),
    {Kind::kLookupReply, RewriteLookupReply, FitLookupReply},
    BodyForm<wire::Release>(Kind::kRelease),
    BodyForm<wire::ReleaseReply>(Kind::kReleaseReply),
    ListForm<wire::Get, wire::GetItem, &wire::Get::item_count, wire::kGetItemsMax>::Of(Kind::kGet),
    ListForm<wire::GetData, wire::GetDataItem, &wire::GetData::item_count, wire::kGetItemsMax>::Of(
        Kind::kGetData),
    ListForm<wire::Put, wire::PutItem, &wire::Put::item_count, wire::kPutItemsMax>::Of(Kind::kPut),
    ListForm<wire::PutReply, uint32_t, &wire::PutReply::item_count, wire::kPutItemsMax>::Of(
        Kind::kPutReply),
    ListForm<wire::Offer, PageKey, &wire::Offer::key_count, wire::kKeysMax>::Of(Kind::kOffer),
    {Kind::kOfferReply, RewriteOfferReply, FitOfferReply},
    ListForm<wire::Subscribe, PageKey, &wire::Subscribe::key_count, wire::kKeysMax>::Of(
        Kind::kSubscribe),
    BodyForm<wire::SubscribeEvent>(Kind::kSubscribeEvent),
    BodyForm<wire::Cancel>(Kind::kCancel),
    {Kind::kPing, RewriteHead, FitBody<0>},
    BodyForm<wire::Probe>(Kind::kProbe),
    {Kind::kProbeReply, RewriteHead, FitBody<0>},
    {Kind::kPong, RewriteHead, FitBody<0>},
    BodyForm<wire::ReportBad>(Kind::kReportBad),
    BodyForm<wire::Renew>(Kind::kRenew),
    BodyForm<wire::RenewReply>(Kind::kRenewReply),
    ListForm<wire::Error, char, &wire::Error::text_bytes, kHeaderBytesMax>::Of(Kind::kError),
};
static_assert(std::size(kForms) == static_cast<size_t>(Kind::kProbeReply));

const Form* FormOf(Kind kind) {
  for (const Form& form : kForms) {
    if (form.kind == kind) return &form;
  }
  return nullptr;
}

// How much of the work of a peer that means well is done for the input. kLongest, kTooLong: the
// message has as many items as its kind may have, and one more.
enum class Help : uint8_t { kNone, kHead, kCounts, kLongest, kTooLong };
constexpr size_t kHelps = 5;
constexpr size_t kMessageBytesMax = 2 * kHeaderBytesMax;

struct Built {
  Message message;
  bool must_be_read = false;
  bool must_be_refused = false;
};

Built TakeMessage(FuzzInput& input) {
  const auto help = static_cast<Help>(input.Below(kHelps));
  const Form& form = kForms[input.Below(std::size(kForms))];
  Built built;
  Message& message = built.message;
  message = MessageOf(input.TakeBytes(kHeaderBytesMax));
  if (help == Help::kNone) return built;
  message.resize(std::max(message.size(), sizeof(wire::Head)));
  if (help != Help::kHead) {
    const bool has_limit = form.bytes_max > 0;
    const bool too_long = has_limit && help == Help::kTooLong;
    if (has_limit && help == Help::kLongest) message.resize(form.bytes_max);
    if (too_long) message.resize(form.bytes_max + form.item_bytes);
    form.fit(message);
    built.must_be_refused = too_long || (has_limit && message.size() > form.bytes_max);
    built.must_be_read = !built.must_be_refused;
  }
  wire::Head head;
  head.kind = static_cast<uint8_t>(form.kind);
  head.body_bytes = static_cast<uint32_t>(message.size() - sizeof(head));
  std::memcpy(&head.op, message.data() + offsetof(wire::Head, op), sizeof(head.op));
  std::memcpy(message.data(), &head, sizeof(head));
  return built;
}

// Nobody reads the bytes between masks and locations; a writer leaves them zero.
void ClearPadding(Kind kind, Message& message) {
  if (kind != Kind::kLookupReply) return;
  wire::LookupReply reply;
  std::memcpy(&reply, message.data() + sizeof(wire::Head), sizeof(reply));
  const size_t masks_end = sizeof(wire::Head) + sizeof(reply) + reply.page_count;
  std::fill(message.begin() + static_cast<std::ptrdiff_t>(masks_end),
            message.begin() + static_cast<std::ptrdiff_t>(PaddedTo8(masks_end)), std::byte{0});
}

void CheckOne(FuzzInput& input) {
  static auto* const memory = new GuardedMemory(kMessageBytesMax);
  const auto cut = input.Take<uint16_t>();
  Built built = TakeMessage(input);
  Message& message = built.message;
  const Bytes arrived = memory->Hold(message);
  absl::StatusOr<Reader> reader = Reader::Of(arrived);
  if (!reader.ok()) {
    FB_CHECK(!built.must_be_read);
    FB_CHECK(reader.status().code() == absl::StatusCode::kInvalidArgument ||
             reader.status().code() == absl::StatusCode::kFailedPrecondition);
    FB_CHECK(!reader.status().message().empty());
    return;
  }
  // A message that is cut is refused at once, whatever it is.
  FB_CHECK(Reader::Of(arrived.subspan(0, cut % arrived.size())).status().code() ==
           absl::StatusCode::kInvalidArgument);

  const Form* const form = FormOf(reader->kind());
  if (form == nullptr) return;
  const absl::StatusOr<Message> rewritten = form->rewrite(*reader);
  FB_CHECK(rewritten.ok() || !built.must_be_read);
  FB_CHECK(!rewritten.ok() || !built.must_be_refused);
  if (!rewritten.ok()) {
    FB_CHECK(rewritten.status().code() == absl::StatusCode::kInvalidArgument);
    return;
  }
  ClearPadding(form->kind, message);
  FB_CHECK(*rewritten == message);
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t form = 0; form < std::size(kForms); ++form) {
    // 300 bytes: a few items of every kind.
    std::vector<std::byte> filling(300);
    for (size_t i = 0; i < filling.size(); ++i) filling[i] = static_cast<std::byte>(i);
    SeedBuilder fitted;
    fitted.Add(uint16_t{9}).AddBelow(static_cast<size_t>(Help::kCounts)).AddBelow(form);
    seeds.push_back(fitted.AddBytes(filling).Take());

    for (const Help help : {Help::kLongest, Help::kTooLong}) {
      SeedBuilder long_one;
      long_one.Add(uint16_t{9}).AddBelow(static_cast<size_t>(help)).AddBelow(form);
      seeds.push_back(long_one.AddBytes(Bytes(filling).subspan(0, 60)).Take());
    }

    // The same as it lies on the wire.
    Message message = MessageOf(filling);
    kForms[form].fit(message);
    wire::Head head;
    head.kind = static_cast<uint8_t>(kForms[form].kind);
    head.body_bytes = static_cast<uint32_t>(message.size() - sizeof(head));
    std::memcpy(message.data(), &head, sizeof(head));
    SeedBuilder whole;
    whole.Add(uint16_t{9}).AddBelow(static_cast<size_t>(Help::kNone)).AddBelow(form);
    seeds.push_back(whole.AddBytes(message).Take());
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  forebay::fuzz::CheckOne(input);
  return 0;
}

#include "transport/ucx/ucx_envelope.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "transport/transport.h"

namespace forebay {
namespace {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie; a big-endian host needs byte swaps here");

template <typename T>
void Put(uint8_t* to, size_t at, T value) {
  std::memcpy(to + at, &value, sizeof(value));
}
template <typename T>
T Get(const void* from, size_t at) {
  T value;
  std::memcpy(&value, static_cast<const uint8_t*>(from) + at, sizeof(value));
  return value;
}

absl::Status Garbage(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("garbage from a peer: ", what));
}

absl::Status CheckMessage(const UcxEnvelope& envelope, size_t rest_bytes, size_t data_bytes) {
  if (envelope.header_bytes == 0 || envelope.header_bytes > kHeaderBytesMax) {
    return Garbage("header of a wrong size");
  }
  if (envelope.offset != 0) return Garbage("a message that does not begin at 0");
  if (envelope.header_leads_data()) {
    if (rest_bytes != 0 || data_bytes < envelope.header_bytes) return Garbage("header cut short");
    return absl::OkStatus();
  }
  if (rest_bytes != envelope.header_bytes) return Garbage("header of another length than it says");
  return absl::OkStatus();
}

}  // namespace

void UcxEnvelope::Write(uint8_t* to) const {
  std::memset(to, 0, kBytes);
  Put(to, 0, kMagic);
  Put(to, 4, kVersion);
  Put(to, 5, static_cast<uint8_t>(kind));
  Put(to, 6, flags);
  Put(to, 8, connection);
  Put(to, 16, message);
  Put(to, 24, payload_bytes);
  Put(to, 32, offset);
  Put(to, 40, header_bytes);
}

absl::StatusOr<UcxEnvelope> ParseUcxEnvelope(Bytes header, size_t data_bytes) {
  if (header.size() < UcxEnvelope::kBytes) return Garbage("an envelope cut short");
  const void* from = header.data();
  if (Get<uint32_t>(from, 0) != UcxEnvelope::kMagic) return Garbage("no envelope");
  if (Get<uint8_t>(from, 4) != UcxEnvelope::kVersion) return Garbage("envelope version");
  UcxEnvelope envelope;
  envelope.kind = static_cast<UcxEnvelope::Kind>(Get<uint8_t>(from, 5));
  envelope.flags = Get<uint16_t>(from, 6);
  envelope.connection = Get<uint64_t>(from, 8);
  envelope.message = Get<uint64_t>(from, 16);
  envelope.payload_bytes = Get<uint64_t>(from, 24);
  envelope.offset = Get<uint64_t>(from, 32);
  envelope.header_bytes = Get<uint32_t>(from, 40);
  const size_t rest_bytes = header.size() - UcxEnvelope::kBytes;
  if (envelope.payload_bytes > kPayloadBytesMax) return Garbage("payload over the limit");
  if ((envelope.flags & ~UcxEnvelope::kFlagHeaderLeadsData) != 0) return Garbage("unknown flags");
  if (envelope.header_leads_data() && envelope.kind != UcxEnvelope::Kind::kMessage) {
    return Garbage("a header that leads no message");
  }
  size_t piece_bytes = data_bytes;
  switch (envelope.kind) {
    case UcxEnvelope::Kind::kMessage: {
      absl::Status sound = CheckMessage(envelope, rest_bytes, data_bytes);
      if (!sound.ok()) return sound;
      if (envelope.header_leads_data()) piece_bytes -= envelope.header_bytes;
      break;
    }
    case UcxEnvelope::Kind::kPiece:
      if (rest_bytes != 0 || envelope.header_bytes != 0 || data_bytes == 0) {
        return Garbage("a piece that is none");
      }
      break;
    case UcxEnvelope::Kind::kPing:
    case UcxEnvelope::Kind::kPong:
    case UcxEnvelope::Kind::kResolved:
      if (rest_bytes != 0 || data_bytes != 0) return Garbage("a ping with baggage");
      break;
    default:
      return Garbage("unknown kind of envelope");
  }
  if (envelope.offset > envelope.payload_bytes ||
      piece_bytes > envelope.payload_bytes - envelope.offset) {
    return Garbage("a piece past the end of its payload");
  }
  return envelope;
}

std::string UcxHello::Encode() const {
  std::string text(kFrontBytes, '\0');
  auto* to = reinterpret_cast<uint8_t*>(text.data());
  Put(to, 0, kMagic);
  Put(to, 4, kVersion);
  Put(to, 6, static_cast<uint16_t>(kind));
  Put(to, 8, static_cast<uint32_t>(worker_address.size()));
  Put(to, 12, serial);
  Put(to, 16, connection);
  std::memcpy(to + 24, incarnation.data(), incarnation.size());
  return text + worker_address;
}

absl::StatusOr<bool> TakeUcxHello(std::string& buffer, UcxHello& hello) {
  // What is wrong already shows in the first bytes: a stranger is not waited for.
  const size_t magic_bytes = std::min(buffer.size(), sizeof(UcxHello::kMagic));
  if (std::memcmp(buffer.data(), &UcxHello::kMagic, magic_bytes) != 0) return Garbage("no hello");
  if (buffer.size() < UcxHello::kFrontBytes) return false;
  const void* from = buffer.data();
  if (Get<uint16_t>(from, 4) != UcxHello::kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer speaks version ", Get<uint16_t>(from, 4), " of the UCX hello, we ",
                     UcxHello::kVersion));
  }
  const auto kind = static_cast<UcxHello::Kind>(Get<uint16_t>(from, 6));
  const size_t address_bytes = Get<uint32_t>(from, 8);
  if (kind < UcxHello::Kind::kHello || kind > UcxHello::Kind::kRefuse) return Garbage("hello kind");
  if (address_bytes > UcxHello::kAddressBytesMax) return Garbage("worker address too long");
  if ((address_bytes > 0) != (kind == UcxHello::Kind::kHello)) return Garbage("hello length");
  if (buffer.size() < UcxHello::kFrontBytes + address_bytes) return false;
  hello.kind = kind;
  hello.serial = Get<uint32_t>(from, 12);
  hello.connection = Get<uint64_t>(from, 16);
  std::memcpy(hello.incarnation.data(), buffer.data() + 24, hello.incarnation.size());
  hello.worker_address = buffer.substr(UcxHello::kFrontBytes, address_bytes);
  buffer.erase(0, UcxHello::kFrontBytes + address_bytes);
  return true;
}

}  // namespace forebay

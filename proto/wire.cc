#include "proto/wire.h"

#include "absl/strings/str_cat.h"

namespace forebay::wire {

absl::StatusOr<Reader> Reader::Of(Bytes header) {
  Reader reader;
  if (header.size() < sizeof(Head)) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", header.size(),
                                                   " bytes is shorter than its head of ",
                                                   sizeof(Head), " bytes"));
  }
  std::memcpy(&reader.head_, header.data(), sizeof(Head));
  if (reader.head_.magic != kMagic) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a message of the data plane: magic ", absl::Hex(reader.head_.magic)));
  }
  if (reader.head_.version < kWireVersionMin || reader.head_.version > kWireVersionMax) {
    return absl::FailedPreconditionError(absl::StrCat("wire version ", reader.head_.version,
                                                      " is not in [", kWireVersionMin, ", ",
                                                      kWireVersionMax, "]"));
  }
  reader.rest_ = header.subspan(sizeof(Head));
  if (reader.head_.body_bytes != reader.rest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a message says ", reader.head_.body_bytes,
                                                   " bytes of body and has ", reader.rest_.size()));
  }
  return reader;
}

absl::Status Reader::SkipPadTo8() {
  // Padding counts from the start of the message, whose head is a multiple of 8 bytes long.
  const size_t pad = (8 - taken_ % 8) % 8;
  if (pad > rest_.size()) return absl::InvalidArgumentError("a message ends in its padding");
  rest_.remove_prefix(pad);
  taken_ += pad;
  return absl::OkStatus();
}

absl::Status Reader::Finish() const {
  if (rest_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a message of kind ", head_.kind, " has ", rest_.size(), " bytes too many"));
}

absl::Status Reader::ReadBytes(void* to, size_t bytes) {
  if (bytes > rest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a message of kind ", head_.kind, " needs ",
                                                   bytes, " bytes more and has ", rest_.size()));
  }
  if (bytes > 0) std::memcpy(to, rest_.data(), bytes);
  rest_.remove_prefix(bytes);
  taken_ += bytes;
  return absl::OkStatus();
}

absl::Status Reader::CheckCount(uint32_t count, uint32_t max, size_t each) const {
  if (count > max) {
    return absl::InvalidArgumentError(absl::StrCat("a message of kind ", head_.kind, " has ", count,
                                                   " entries; the most is ", max));
  }
  if (size_t{count} * each > rest_.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a message of kind ", head_.kind, " says ",
                                                   count, " entries and ends before them"));
  }
  return absl::OkStatus();
}

absl::Status ReadError(Reader& reader, absl::Status* told) {
  Error body;
  std::vector<char> text;
  if (absl::Status status = reader.Read(&body); !status.ok()) return status;
  if (absl::Status status = reader.ReadArray(body.text_bytes, body.text_bytes, &text);
      !status.ok()) {
    return status;
  }
  *told = absl::Status(static_cast<absl::StatusCode>(body.status),
                       absl::string_view(text.data(), text.size()));
  if (told->ok()) *told = absl::InternalError("an error without a code");
  return absl::OkStatus();
}

}  // namespace forebay::wire

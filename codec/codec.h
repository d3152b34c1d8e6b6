#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/frame_header.h"
#include "base/kv_layout.h"

// Part bytes -> the payload of a frame, and back. This header is the guide to the folder.
namespace forebay {

// One way to encode the raw bytes of a part.
//
// The same input always gives the same payload. Nothing allocates in proportion to its input.
// Threads  any; an instance has no state that changes.
class Codec {
 public:
  virtual ~Codec() = default;
  virtual CodecId id() const = 0;
  virtual absl::string_view name() const = 0;
  // Largest payload of a part of `raw_bytes`: what a writer makes room for.
  virtual size_t PayloadBytesMax(size_t raw_bytes) const = 0;
  // Encodes `raw`, a part as base/kv_layout.h orders it. The payload bytes written.
  //   INVALID_ARGUMENT   `payload` is smaller than PayloadBytesMax, or `raw` is no such part
  virtual absl::StatusOr<size_t> Encode(const PartSpec& part, Bytes raw,
                                        MutableBytes payload) const = 0;
  // Fills `raw` entirely, or fails.
  //   DATA_LOSS          the payload does not decode to exactly that many bytes
  virtual absl::Status Decode(const FrameHeader& header, Bytes payload, MutableBytes raw) const = 0;
  // True when payload and raw bytes are the same bytes, so that nobody needs to call the above: a
  // writer sends its memory, a reader lands in its own.
  virtual bool identity() const { return false; }
};

// The codec that leaves bytes as they are.
class RawCodec final : public Codec {
 public:
  CodecId id() const override { return CodecId::kRaw; }
  absl::string_view name() const override { return "raw"; }
  size_t PayloadBytesMax(size_t raw_bytes) const override { return raw_bytes; }
  absl::StatusOr<size_t> Encode(const PartSpec& part, Bytes raw,
                                MutableBytes payload) const override;
  absl::Status Decode(const FrameHeader& header, Bytes payload, MutableBytes raw) const override;
  bool identity() const override { return true; }
};

// The codecs that this build knows, by id.
//
// Threads  any, after Register.
class CodecRegistry {
 public:
  // With every codec of this build.
  static const CodecRegistry& Default();

  // FAILED_PRECONDITION: the id is taken.
  absl::Status Register(std::unique_ptr<Codec> codec);
  // UNIMPLEMENTED naming the id: a frame of it is a miss here.
  absl::StatusOr<const Codec*> Find(uint8_t id) const;
  absl::StatusOr<const Codec*> Find(CodecId id) const { return Find(static_cast<uint8_t>(id)); }
  // By its name, for configuration. INVALID_ARGUMENT naming the known ones.
  absl::StatusOr<const Codec*> FindByName(absl::string_view name) const;

 private:
  std::vector<std::unique_ptr<Codec>> codecs_;
};

}  // namespace forebay

// What reads a dictionary, and what decodes uniform steps with one, meets any bytes at all: it
// fails, or fills its part entirely; it touches nothing else; and a dictionary that was read serves
// an encoder.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/quality.h"
#include "codec/codec.h"
#include "codec/testing/parts.h"
#include "codec/uniform/calibrator.h"
#include "codec/uniform/dictionary.h"
#include "codec/uniform/uniform_codec.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/guarded_memory.h"

namespace forebay::fuzz {
namespace {

constexpr size_t kRawBytesMax = 256 * 1024;
constexpr size_t kNameBytes = sizeof(Sha256Digest);
constexpr size_t kModelCount = 3;

enum Mode : uint8_t { kAnyDictionary, kDamagedDictionary, kAnyPayload, kDamagedPayload, kModes };

// A layout, the dictionary that was made for it, and a part with codes of its own.
struct Model {
  KvLayout layout;
  PartSpec part;
  std::shared_ptr<const Dictionary> dictionary;
  DictionaryStore store;
  std::unique_ptr<UniformCodec> codec;
  std::vector<std::byte> raw;
  EncodedPart encoded;
  std::vector<std::byte> payload;
};

void Encode(Model& model, const UniformCodec& codec) {
  model.payload.resize(codec.PayloadBytesMax(model.layout, model.part));
  model.encoded = *codec.Encode(model.layout, model.part, model.raw, absl::MakeSpan(model.payload));
  model.payload.resize(model.encoded.payload_bytes);
}

std::unique_ptr<Model> MakeModel(size_t which) {
  auto model = std::make_unique<Model>();
  // Two of small planes in one block; one whose planes are blocks of their own.
  model->layout = which == 0   ? KvLayout::Uniform(2, 2, 32, DType::kBf16, 16, 2)
                  : which == 1 ? KvLayout::Uniform(1, 2, 64, DType::kFp16, 8, 1)
                               : KvLayout::Uniform(1, 4, 64, DType::kBf16, 144, 1);
  if (which == 1) model->layout.plane_order = PlaneOrder::kHeadMajor;
  FB_CHECK(model->layout.Validate().ok());
  model->part = model->layout.Parts()[0];
  FB_CHECK(model->part.raw_bytes <= kRawBytesMax);
  model->raw = testing::CacheBytes(model->part, 1);
  const LayerSpec& spec = model->layout.layers[0];
  const PlaneShape shape{model->layout.page_tokens, spec.kv_heads, spec.k_dim,
                         model->layout.plane_order, spec.dtype};
  UniformCalibrator calibrator(model->layout);
  const std::vector<std::byte> text = testing::CacheBytes(model->part, 2);
  for (uint32_t plane = 0; plane < 2u * model->part.layer_count; ++plane) {
    const Bytes bytes = Bytes(text).subspan(plane * shape.raw_bytes(), shape.raw_bytes());
    FB_CHECK(
        calibrator.AddPlane(plane / 2, plane % 2 == 0 ? Stream::kKey : Stream::kValue, shape, bytes)
            .ok());
  }
  model->dictionary = std::make_shared<const Dictionary>(*calibrator.Finish({}));
  model->store.Add(model->dictionary);
  model->codec = std::make_unique<UniformCodec>("uniform", &model->store, model->dictionary,
                                                /*k_dial=*/1.0f, /*v_dial=*/1.0f);
  Encode(*model, *model->codec);
  FB_CHECK(model->encoded.flags == kFrameDictionary);
  return model;
}

const Model& TakeModel(FuzzInput& input) {
  static const auto* const models = [] {
    auto* const made = new std::vector<std::unique_ptr<Model>>;
    for (size_t i = 0; i < kModelCount; ++i) made->push_back(MakeModel(i));
    return made;
  }();
  return *(*models)[input.Below(kModelCount)];
}

void RepairChecksum(std::vector<std::byte>& serialized) {
  if (serialized.size() < sizeof(uint64_t)) return;
  const size_t at = serialized.size() - sizeof(uint64_t);
  const uint64_t checksum = ChecksumOf(Bytes(serialized).first(at));
  std::memcpy(serialized.data() + at, &checksum, sizeof(checksum));
}

// One that is read is the same written again, and what is encoded with it comes back.
void ReadDictionary(const Model& model, const std::vector<std::byte>& serialized) {
  static auto* const memory = new GuardedMemory(kRawBytesMax);
  if (serialized.size() > kRawBytesMax) return;
  const absl::StatusOr<Dictionary> read = Dictionary::Parse(memory->Hold(serialized));
  if (!read.ok()) {
    FB_CHECK(read.status().code() == absl::StatusCode::kInvalidArgument);
    FB_CHECK(!read.status().message().empty());
    return;
  }
  FB_CHECK(read->serialized() == Bytes(serialized));
  const auto dictionary = std::make_shared<const Dictionary>(*read);
  DictionaryStore store;
  store.Add(dictionary);
  const UniformCodec codec("fuzz", &store, dictionary, 1, 1);
  std::vector<std::byte> payload(codec.PayloadBytesMax(model.layout, model.part));
  const absl::StatusOr<EncodedPart> encoded =
      codec.Encode(model.layout, model.part, model.raw, absl::MakeSpan(payload));
  FB_CHECK(encoded.ok());
  FrameHeader header;
  header.flags = encoded->flags;
  header.codec_param = PackQuality(encoded->quality);
  std::vector<std::byte> back(model.raw.size());
  FB_CHECK(codec
               .Decode(model.layout, model.part, header,
                       Bytes(payload).first(encoded->payload_bytes), absl::MakeSpan(back))
               .ok());
}

void DecodePayload(const Model& model, uint16_t flags, uint16_t quality, Bytes payload) {
  static auto* const raw_memory = new GuardedMemory(kRawBytesMax);
  static auto* const payload_memory = new GuardedMemory(kRawBytesMax);
  const Bytes held = payload_memory->Hold(payload.first(std::min(payload.size(), kRawBytesMax)));
  const MutableBytes raw = raw_memory->Last(model.part.raw_bytes);
  FrameHeader header;
  header.codec = static_cast<uint8_t>(CodecId::kUniform);
  header.flags = flags;
  header.codec_param = quality;
  std::memset(raw.data(), 0x5a, raw.size());
  const absl::Status first = model.codec->Decode(model.layout, model.part, header, held, raw);
  if (!first.ok()) {
    FB_CHECK(!first.message().empty());
    return;
  }
  const std::vector<std::byte> once(raw.begin(), raw.end());
  std::memset(raw.data(), 0xa5, raw.size());
  FB_CHECK(model.codec->Decode(model.layout, model.part, header, held, raw).ok());
  FB_CHECK(std::memcmp(once.data(), raw.data(), raw.size()) == 0);
}

// The header's word on the quality, for whichever steps stand in a payload that is damaged.
uint16_t TakeQuality(FuzzInput& input, const Model& model) {
  const auto quality = input.Take<uint16_t>();
  return quality == 0 ? PackQuality(model.encoded.quality) : quality;
}

void AnyPayload(FuzzInput& input) {
  const Model& model = TakeModel(input);
  const uint16_t quality = TakeQuality(input, model);
  const auto flags = static_cast<uint16_t>(input.Below(16));
  const bool named = input.Flag();
  const Bytes rest = input.TakeRest();
  const size_t name_bytes = named ? kNameBytes : 0;
  std::vector<std::byte> payload(name_bytes + rest.size());
  if (named) std::memcpy(payload.data(), model.dictionary->name().data(), kNameBytes);
  if (!rest.empty()) std::memcpy(payload.data() + name_bytes, rest.data(), rest.size());
  DecodePayload(model, flags, quality, payload);
}

// A sound payload, its name too, but for changes behind it.
void DamagePayload(FuzzInput& input) {
  const Model& model = TakeModel(input);
  const uint16_t quality = TakeQuality(input, model);
  std::vector<std::byte> behind(model.payload.begin() + kNameBytes, model.payload.end());
  Damage(input, behind);
  // Steps are four bytes that have to be a sound number: one of its own is, times a power of two.
  if (input.Flag() && behind.size() >= 12) {
    float step;
    std::memcpy(&step, behind.data() + 8, sizeof(step));
    step *= static_cast<float>(1 + input.Below(64));
    std::memcpy(behind.data() + 8, &step, sizeof(step));
  }
  std::vector<std::byte> payload(model.payload.begin(), model.payload.begin() + kNameBytes);
  payload.insert(payload.end(), behind.begin(), behind.end());
  DecodePayload(model, model.encoded.flags, quality, payload);
}

void AnyDictionary(FuzzInput& input) {
  const Model& model = TakeModel(input);
  const bool repair = input.Flag();
  const Bytes rest = input.TakeRest();
  std::vector<std::byte> serialized(rest.begin(), rest.end());
  if (repair) RepairChecksum(serialized);
  ReadDictionary(model, serialized);
}

void DamageDictionary(FuzzInput& input) {
  const Model& model = TakeModel(input);
  const Bytes sound = model.dictionary->serialized();
  std::vector<std::byte> serialized(sound.begin(), sound.end());
  Damage(input, serialized);
  RepairChecksum(serialized);
  ReadDictionary(model, serialized);
}

void RunMode(FuzzInput& input) {
  switch (input.Take<uint8_t>() % kModes) {
    case kAnyDictionary:
      AnyDictionary(input);
      break;
    case kDamagedDictionary:
      DamageDictionary(input);
      break;
    case kAnyPayload:
      AnyPayload(input);
      break;
    default:
      DamagePayload(input);
      break;
  }
}

}  // namespace

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (size_t which = 0; which < kModelCount; ++which) {
    const std::string text = SeedBuilder().AddBelow(which).Take();
    FuzzInput input(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    const Model& model = TakeModel(input);
    seeds.push_back(SeedBuilder()
                        .Add(kAnyDictionary)
                        .AddBelow(which)
                        .AddFlag(true)
                        .AddBytes(model.dictionary->serialized())
                        .Take());
    if (which < 2) {
      seeds.push_back(SeedBuilder()
                          .Add(kAnyPayload)
                          .AddBelow(which)
                          .Add(uint16_t{0})
                          .AddBelow(model.encoded.flags)
                          .AddFlag(true)
                          .AddBytes(Bytes(model.payload).subspan(kNameBytes))
                          .Take());
    }
    const size_t bytes = model.dictionary->serialized().size();
    for (uint8_t changes = 0; changes < 4; ++changes) {
      SeedBuilder dictionary;
      SeedBuilder payload;
      dictionary.Add(kDamagedDictionary).AddBelow(which).Add(changes);
      payload.Add(kDamagedPayload).AddBelow(which).Add(uint16_t{0}).Add(changes);
      for (uint8_t i = 0; i < changes; ++i) {
        // From its end on, where the channels are.
        dictionary.Add(uint8_t{1}).Add(static_cast<uint32_t>(bytes - 9 - i)).Add(uint8_t{1});
        payload.Add(uint8_t{1}).Add(uint32_t{200} * i).Add(uint8_t{1});
      }
      seeds.push_back(dictionary.Take());
      payload.AddFlag(true).AddBelow(0);
      seeds.push_back(payload.Take());
    }
  }
  return seeds;
}

}  // namespace forebay::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  forebay::fuzz::FuzzInput input(data, bytes);
  forebay::fuzz::RunMode(input);
  return 0;
}

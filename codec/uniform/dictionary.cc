#include "codec/uniform/dictionary.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/checksum.h"
#include "base/dtype.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

using ClassFrequencies = Dictionary::ClassFrequencies;
using Layer = Dictionary::Layer;
using Plane = Dictionary::Plane;

constexpr uint32_t kMagic = 0x55594246;  // "FBYU"
constexpr uint16_t kVersion = 1;
constexpr int16_t kSigmaEighthsMax = 800;
constexpr size_t kChecksumBytes = sizeof(uint64_t);

size_t SymbolOf(int code) { return static_cast<uint8_t>(code); }

// The largest r such that all codes from -r to r have a frequency; -1 where 0 has none.
int ReachOf(const Rans32Frequencies& table) {
  int reach = -1;
  while (reach < kUniformCodeMax && table.of[SymbolOf(reach + 1)] > 0 &&
         table.of[SymbolOf(-reach - 1)] > 0) {
    ++reach;
  }
  return reach;
}

absl::Status CheckTable(const Rans32Frequencies& table) {
  const int reach = ReachOf(table);
  if (reach < 0 || table.of[SymbolOf(kUniformEscape)] == 0) {
    return absl::InvalidArgumentError("a table without zero or without the escape");
  }
  for (int code = reach + 1; code <= kUniformCodeMax; ++code) {
    if (table.of[SymbolOf(code)] > 0 || table.of[SymbolOf(-code)] > 0) {
      return absl::InvalidArgumentError(absl::StrCat("a table of codes beyond its reach, ", reach));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlane(const Plane& plane, size_t channels) {
  if (plane.means.size() != channels || plane.sigmas.size() != channels ||
      plane.weights.size() != channels) {
    return absl::InvalidArgumentError(
        absl::StrCat("a plane of other than ", channels, " channels"));
  }
  if (channels == 0) return absl::OkStatus();
  if (!UniformStepIsSound(plane.step)) {
    return absl::InvalidArgumentError(absl::StrCat("a step of ", plane.step));
  }
  for (const int16_t sigma : plane.sigmas) {
    if (sigma < -kSigmaEighthsMax || sigma > kSigmaEighthsMax) {
      return absl::InvalidArgumentError(absl::StrCat("a sigma of 2^(", sigma, "/8)"));
    }
  }
  for (const uint16_t mean : plane.means) {
    if (!IsFiniteFp32(Bf16ToFp32(mean)))
      return absl::InvalidArgumentError("a mean that is no number");
  }
  return absl::OkStatus();
}

absl::Status CheckLayer(const Layer& layer) {
  if (layer.dtype != DType::kBf16 && layer.dtype != DType::kFp16) {
    return absl::InvalidArgumentError(
        absl::StrCat("a layer of dtype ", static_cast<int>(layer.dtype)));
  }
  FB_RETURN_IF_ERROR(CheckPlane(layer.k, size_t{layer.kv_heads} * layer.k_dim));
  return CheckPlane(layer.v, size_t{layer.kv_heads} * layer.v_dim);
}

class Output {
 public:
  template <typename T>
  void Put(const T& value) {
    PutAll(&value, 1);
  }
  template <typename T>
  void PutAll(const T* values, size_t count) {
    const auto* const begin = reinterpret_cast<const std::byte*>(values);
    bytes_.insert(bytes_.end(), begin, begin + count * sizeof(T));
  }
  void Put(const ClassFrequencies& tables) {
    for (const Rans32Frequencies& table : tables) {
      std::byte serialized[Rans32Frequencies::kSerializedBytesMax];
      PutAll(serialized, table.Serialize(absl::MakeSpan(serialized)));
    }
  }
  void Put(const Plane& plane) {
    if (plane.means.empty()) return;
    Put(plane.step);
    PutAll(plane.means.data(), plane.means.size());
    PutAll(plane.sigmas.data(), plane.sigmas.size());
    PutAll(plane.weights.data(), plane.weights.size());
  }

  std::vector<std::byte> bytes_;
};

class Input {
 public:
  explicit Input(Bytes bytes) : bytes_(bytes) {}

  template <typename T>
  absl::Status Take(T& value) {
    return TakeAll(&value, 1);
  }
  template <typename T>
  absl::Status TakeAll(T* values, size_t count) {
    FB_RETURN_IF_ERROR(Check(count * sizeof(T)));
    if (count > 0) std::memcpy(values, bytes_.data(), count * sizeof(T));
    bytes_.remove_prefix(count * sizeof(T));
    return absl::OkStatus();
  }
  absl::Status Take(ClassFrequencies& tables) {
    for (Rans32Frequencies& table : tables) {
      absl::StatusOr<Rans32Frequencies> parsed = Rans32Frequencies::Parse(&bytes_);
      if (!parsed.ok()) return absl::InvalidArgumentError(parsed.status().message());
      table = *parsed;
    }
    return absl::OkStatus();
  }
  absl::Status Take(Plane& plane, uint64_t channels) {
    if (channels == 0) return absl::OkStatus();
    FB_RETURN_IF_ERROR(Take(plane.step));
    // Before there is memory for what is not there.
    FB_RETURN_IF_ERROR(Check(channels));
    FB_RETURN_IF_ERROR(Check(channels * 5));
    plane.means.resize(channels);
    plane.sigmas.resize(channels);
    plane.weights.resize(channels);
    FB_RETURN_IF_ERROR(TakeAll(plane.means.data(), channels));
    FB_RETURN_IF_ERROR(TakeAll(plane.sigmas.data(), channels));
    return TakeAll(plane.weights.data(), channels);
  }
  bool empty() const { return bytes_.empty(); }

 private:
  absl::Status Check(uint64_t bytes) const {
    if (bytes <= bytes_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError("a dictionary that ends early");
  }

  Bytes bytes_;
};

std::vector<std::byte> Serialize(const ClassFrequencies& k, const ClassFrequencies& v,
                                 const std::vector<Layer>& layers) {
  Output out;
  out.Put(kMagic);
  out.Put(kVersion);
  out.Put(static_cast<uint16_t>(layers.size()));
  out.Put(k);
  out.Put(v);
  for (const Layer& layer : layers) {
    out.Put(layer.kv_heads);
    out.Put(layer.k_dim);
    out.Put(layer.v_dim);
    out.Put(layer.dtype);
    const uint8_t zeros[3] = {};
    out.PutAll(zeros, 3);
    out.Put(layer.k);
    out.Put(layer.v);
  }
  out.Put(ChecksumOf(out.bytes_));
  return std::move(out.bytes_);
}

}  // namespace

Dictionary::Tables::Tables(const ClassFrequencies& frequencies)
    : encode_(kUniformClasses), decode_(kUniformClasses) {
  for (size_t place = 0; place < kUniformClasses; ++place) {
    frequencies[place].Fill(encode_[place]);
    frequencies[place].Fill(decode_[place]);
    reaches_[place] = static_cast<uint8_t>(ReachOf(frequencies[place]));
  }
}

Dictionary::Dictionary(const ClassFrequencies& k, const ClassFrequencies& v,
                       std::vector<Layer> layers, std::vector<std::byte> serialized)
    : serialized_(std::move(serialized)),
      name_(Sha256({serialized_})),
      layers_(std::move(layers)),
      k_tables_(k),
      v_tables_(v) {}

absl::StatusOr<Dictionary> Dictionary::Create(const ClassFrequencies& k, const ClassFrequencies& v,
                                              std::vector<Layer> layers) {
  if (layers.size() > UINT16_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("a dictionary of ", layers.size(), " layers"));
  }
  for (const ClassFrequencies* tables : {&k, &v}) {
    for (const Rans32Frequencies& table : *tables) FB_RETURN_IF_ERROR(CheckTable(table));
  }
  for (const Layer& layer : layers) FB_RETURN_IF_ERROR(CheckLayer(layer));
  std::vector<std::byte> serialized = Serialize(k, v, layers);
  return Dictionary(k, v, std::move(layers), std::move(serialized));
}

absl::StatusOr<Dictionary> Dictionary::Parse(Bytes serialized) {
  if (serialized.size() < kChecksumBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a dictionary of ", serialized.size(), " bytes"));
  }
  const Bytes content = serialized.first(serialized.size() - kChecksumBytes);
  uint64_t checksum;
  std::memcpy(&checksum, content.data() + content.size(), sizeof(checksum));
  if (checksum != ChecksumOf(content)) {
    return absl::InvalidArgumentError("a dictionary whose checksum differs");
  }
  Input in(content);
  uint32_t magic;
  uint16_t version;
  uint16_t layer_count;
  FB_RETURN_IF_ERROR(in.Take(magic));
  FB_RETURN_IF_ERROR(in.Take(version));
  FB_RETURN_IF_ERROR(in.Take(layer_count));
  if (magic != kMagic || version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("a dictionary of version ", version));
  }
  ClassFrequencies k;
  ClassFrequencies v;
  FB_RETURN_IF_ERROR(in.Take(k));
  FB_RETURN_IF_ERROR(in.Take(v));
  std::vector<Layer> layers;
  for (uint16_t i = 0; i < layer_count; ++i) {
    Layer layer;
    uint8_t zeros[3];
    FB_RETURN_IF_ERROR(in.Take(layer.kv_heads));
    FB_RETURN_IF_ERROR(in.Take(layer.k_dim));
    FB_RETURN_IF_ERROR(in.Take(layer.v_dim));
    FB_RETURN_IF_ERROR(in.Take(layer.dtype));
    FB_RETURN_IF_ERROR(in.TakeAll(zeros, 3));
    FB_RETURN_IF_ERROR(in.Take(layer.k, uint64_t{layer.kv_heads} * layer.k_dim));
    FB_RETURN_IF_ERROR(in.Take(layer.v, uint64_t{layer.kv_heads} * layer.v_dim));
    layers.push_back(std::move(layer));
  }
  FB_ASSIGN_OR_RETURN(Dictionary dictionary, Create(k, v, std::move(layers)));
  // What was read in full and is the same written again has no bytes that nothing reads.
  if (in.empty() && dictionary.serialized() == serialized) return dictionary;
  return absl::InvalidArgumentError("a dictionary with bytes that no writer writes");
}

absl::Status Dictionary::CheckLayout(const KvLayout& layout) const {
  if (layout.layers.size() != layers_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a dictionary of ", layers_.size(), " layers for ", layout.layers.size()));
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& mine = layers_[i];
    const LayerSpec& other = layout.layers[i];
    if (mine.k_dim == 0 && mine.v_dim == 0) continue;  // not coded
    if (mine.kv_heads != other.kv_heads || mine.dtype != other.dtype || mine.k_dim != other.k_dim ||
        mine.v_dim != other.v_dim) {
      return absl::FailedPreconditionError(absl::StrCat(
          "a dictionary for layer ", i, " of ", mine.kv_heads, " x (", mine.k_dim, ", ", mine.v_dim,
          ") ", DTypeName(mine.dtype), " where it is ", other.kv_heads, " x (", other.k_dim, ", ",
          other.v_dim, ") ", DTypeName(other.dtype)));
    }
  }
  return absl::OkStatus();
}

DictionaryStore& DictionaryStore::Default() {
  static auto* const store = new DictionaryStore;
  return *store;
}

void DictionaryStore::Add(std::shared_ptr<const Dictionary> dictionary) {
  FB_CHECK(dictionary != nullptr);
  absl::MutexLock lock(&mutex_);
  by_name_[dictionary->name()] = std::move(dictionary);
}

std::shared_ptr<const Dictionary> DictionaryStore::Find(const Sha256Digest& name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

}  // namespace forebay

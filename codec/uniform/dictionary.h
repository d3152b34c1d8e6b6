#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/bytes.h"
#include "base/kv_layout.h"
#include "base/sha256.h"
#include "codec/entropy/rans32.h"
#include "codec/steps/uniform_quant.h"

namespace forebay {

// What is known of a model's channels before a page is seen: calibration for the uniform-step codec
// (codec/uniform/uniform_planes.h), made by UniformCalibrator. One dictionary serves every step: a
// channel's table follows from 2 * log2(sigma / step).
//
// Serialized, little endian, without padding:
//   u32 magic "FBYU" | u16 version = 1 | u16 layer_count
//   K tables, V tables: each kUniformClasses tables of codec/entropy/rans32.h, the smallest class
//   first. A table has frequencies for the codes from -r to r, as bytes, and the escape, for no
//   others.
//   layers: u32 kv_heads | u32 k_dim | u32 v_dim | u8 dtype | u8 0 x 3, then its K and V
//     f32 step | u16 means[kv_heads * dim], bf16 | i16 sigmas[...] | i8 weights[...]
//     of which there is nothing where dim is 0
//   u64 XXH3-64 of all before
//
// Threads  any; a value that does not change. About 0.4 MiB, and 5 bytes a channel.
class Dictionary {
 public:
  // The K or the V of one layer, by [head][channel].
  struct Plane {
    float step = 0;               // at a dial of 1; sound (UniformStepIsSound)
    std::vector<uint16_t> means;  // bf16, finite
    std::vector<int16_t> sigmas;  // eighths of log2, within 800
    std::vector<int8_t> weights;  // a channel's step is the plane's times 2^(weight / 8)

    friend bool operator==(const Plane&, const Plane&) = default;
  };
  struct Layer {
    uint32_t kv_heads = 0;
    uint32_t k_dim = 0;  // 0: its K is not coded
    uint32_t v_dim = 0;
    DType dtype = DType::kBf16;
    Plane k;
    Plane v;

    friend bool operator==(const Layer&, const Layer&) = default;
  };
  using ClassFrequencies = std::array<Rans32Frequencies, kUniformClasses>;

  // The codes of each class, ready for the kernels.
  class Tables {
   public:
    explicit Tables(const ClassFrequencies& frequencies);
    const rans32::EncodeTable* encode() const { return encode_.data(); }
    const rans32::DecodeTable* decode() const { return decode_.data(); }
    int reach(int place) const { return reaches_[static_cast<size_t>(place)]; }

   private:
    std::vector<rans32::EncodeTable> encode_;
    std::vector<rans32::DecodeTable> decode_;
    std::array<uint8_t, kUniformClasses> reaches_;
  };

  // INVALID_ARGUMENT: what is wrong.
  static absl::StatusOr<Dictionary> Create(const ClassFrequencies& k, const ClassFrequencies& v,
                                           std::vector<Layer> layers);
  // The bytes are not trusted; memory is in proportion to them. INVALID_ARGUMENT: what is wrong.
  static absl::StatusOr<Dictionary> Parse(Bytes serialized);

  Bytes serialized() const { return serialized_; }
  // SHA-256 of the serialized bytes: what frames call it.
  const Sha256Digest& name() const { return name_; }

  const std::vector<Layer>& layers() const { return layers_; }
  const Tables& k_tables() const { return k_tables_; }
  const Tables& v_tables() const { return v_tables_; }

  // FAILED_PRECONDITION: it was made for another layout; the first difference.
  absl::Status CheckLayout(const KvLayout& layout) const;

 private:
  Dictionary(const ClassFrequencies& k, const ClassFrequencies& v, std::vector<Layer> layers,
             std::vector<std::byte> serialized);

  std::vector<std::byte> serialized_;
  Sha256Digest name_;
  std::vector<Layer> layers_;
  Tables k_tables_;
  Tables v_tables_;
};

// Dictionaries by name, for those who decode.
//
// Threads  any.
class DictionaryStore {
 public:
  // This process's.
  static DictionaryStore& Default();

  void Add(std::shared_ptr<const Dictionary> dictionary);
  // Null where there is none.
  std::shared_ptr<const Dictionary> Find(const Sha256Digest& name) const;

 private:
  mutable absl::Mutex mutex_;
  std::map<Sha256Digest, std::shared_ptr<const Dictionary>> by_name_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace forebay

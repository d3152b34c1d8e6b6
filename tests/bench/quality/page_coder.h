#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "codec/codec.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/paged_cache.h"
#include "tests/bench/quality/metrics.h"

namespace forebay::bench {

inline constexpr uint32_t kPageTokens = 64;

// What pages took: payload bytes as the codec returned them, beside the elements in them.
struct CodedBytes {
  struct Count {
    uint64_t payload = 0;
    uint64_t elements = 0;
    double bits() const {
      return elements == 0 ? 0 : 8.0 * static_cast<double>(payload) / static_cast<double>(elements);
    }
    void Add(const Count& other) {
      payload += other.payload;
      elements += other.elements;
    }
  };
  Count all;      // keys and values in one part
  Count keys;     // in parts of their own
  Count values;   // likewise
  Count headers;  // of the frames of `all`

  void Add(const CodedBytes& other);
};

// Pages of a model: bf16, in parts of as many layers as make 32 KiB, since a part that is smaller
// than any pool's would be measured by its headers. `split`: keys and values apart.
KvLayout PageLayout(const examples::Checkpoint& model, bool split);

// What coding did to a page, for each layer.
struct PageDamage {
  CodedBytes bytes;
  std::vector<RelativeError> keys;
  std::vector<RelativeError> values;
};

// Sends pages of a cache through a codec and back, in the parts of PageLayout.
//
// Borrows  model and codec.
class PageCoder {
 public:
  PageCoder(const examples::Checkpoint& model, const Codec& codec);

  // Replaces the page's keys and values, which must be numbers of bf16, by what decodes from what
  // they encode to. `damage` may be null.
  absl::Status Code(examples::PagedCache& cache, uint32_t page, PageDamage* damage) const;

 private:
  const Codec& codec_;
  const KvLayout layout_;
  const KvLayout split_;  // the same with keys and values apart
};

}  // namespace forebay::bench

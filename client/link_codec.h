#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "base/kv_layout.h"
#include "client/codec_book.h"
#include "client/codec_choice.h"

namespace forebay {

// Which codec one connection takes: the forced one, or what ChooseCodec says of the path.
//
// Threads  one reactor.
class LinkCodec {
 public:
  // For `raw_bytes` that are to be published, of parts for which `bound` is the weakest allowed.
  // A forced codec that `bound` does not allow gives way to raw.
  const Codec& Choose(const CodecBook& book, const QualityBound& bound, const PathRates& path,
                      uint64_t raw_bytes, uint64_t chunk_bytes);
  // The newest choice for each bound (PackQuality); empty where none was made.
  const absl::btree_map<uint16_t, CodecChoice>& choices() const { return choices_; }

 private:
  absl::btree_map<uint16_t, CodecChoice> choices_;
};

}  // namespace forebay

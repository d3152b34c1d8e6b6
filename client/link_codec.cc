#include "client/link_codec.h"

namespace forebay {

const Codec& LinkCodec::Choose(const CodecBook& book, const QualityBound& bound,
                               const PathRates& path, uint64_t raw_bytes, uint64_t chunk_bytes) {
  if (!book.automatic()) {
    return bound.Allows(book.forced().quality()) ? book.forced() : CodecBook::Find("raw");
  }
  CodecChoice& choice = choices_[PackQuality(bound)];
  choice = ChooseCodec(book.candidates(), bound, path, raw_bytes, chunk_bytes, choice.name);
  return book.CodecOf(choice.name);
}

}  // namespace forebay

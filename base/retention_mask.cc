#include "base/retention_mask.h"

#include <bit>

#include "base/check.h"

namespace forebay {

RetentionMask RetentionMask::DropAll(uint32_t tokens, uint32_t scopes) {
  RetentionMask mask{tokens, scopes, {}};
  mask.words.assign(scopes * mask.word_count(), 0);
  return mask;
}

RetentionMask RetentionMask::KeepAll(uint32_t tokens, uint32_t scopes) {
  RetentionMask mask = DropAll(tokens, scopes);
  for (uint64_t& word : mask.words) word = ~uint64_t{0};
  if (tokens % 64 == 0) return mask;
  for (uint32_t scope = 1; scope <= scopes; ++scope) {
    mask.words[scope * mask.word_count() - 1] = (uint64_t{1} << (tokens % 64)) - 1;
  }
  return mask;
}

uint32_t RetentionMask::Kept(uint32_t scope) const {
  int kept = 0;
  for (size_t i = 0; i < word_count(); ++i) kept += std::popcount(words[scope * word_count() + i]);
  return static_cast<uint32_t>(kept);
}

RetentionMask RetentionMask::Slice(uint32_t token_begin, uint32_t token_end) const {
  FB_CHECK(token_begin <= token_end && token_end <= tokens);
  RetentionMask slice = DropAll(token_end - token_begin, scopes);
  for (uint32_t scope = 0; scope < scopes; ++scope) {
    for (uint32_t token = 0; token < slice.tokens; ++token) {
      if (Keeps(scope, token_begin + token)) slice.Keep(scope, token);
    }
  }
  return slice;
}

}  // namespace forebay

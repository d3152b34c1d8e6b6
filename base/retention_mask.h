#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forebay {

// Which tokens of one layer stay in its cache: one list for all heads, or one for each KV head.
//
// Shape    words: [scope][word_count()], bit t % 64 of word t / 64 set where token t is kept; bits
//          past the last token are 0.
// Threads  a value.
struct RetentionMask {
  uint32_t tokens = 0;
  uint32_t scopes = 0;  // 1: for all heads; else the KV heads of the layer
  std::vector<uint64_t> words;

  friend bool operator==(const RetentionMask&, const RetentionMask&) = default;

  static RetentionMask DropAll(uint32_t tokens, uint32_t scopes);
  static RetentionMask KeepAll(uint32_t tokens, uint32_t scopes);

  size_t word_count() const { return (size_t{tokens} + 63) / 64; }
  // The scope that decides for a KV head.
  uint32_t ScopeOf(uint32_t kv_head) const { return scopes == 1 ? 0 : kv_head; }
  bool Keeps(uint32_t scope, uint32_t token) const {
    return (words[scope * word_count() + token / 64] >> (token % 64) & 1) != 0;
  }
  void Keep(uint32_t scope, uint32_t token) {
    words[scope * word_count() + token / 64] |= uint64_t{1} << (token % 64);
  }
  void Drop(uint32_t scope, uint32_t token) {
    words[scope * word_count() + token / 64] &= ~(uint64_t{1} << (token % 64));
  }
  // Tokens that `scope` keeps.
  uint32_t Kept(uint32_t scope) const;
  // The mask of tokens [token_begin, token_end), of a page for instance. Requires
  // token_begin <= token_end <= tokens.
  RetentionMask Slice(uint32_t token_begin, uint32_t token_end) const;
};

}  // namespace forebay

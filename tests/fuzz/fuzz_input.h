#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "base/bytes.h"

namespace forebay::fuzz {

// What a target draws its decisions from: the input, from the front. Past its end everything is
// zero, so that each input, however short, is a whole test.
//
// Borrows  the input.
class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t bytes) : rest_(AsBytes(data, bytes)) {}

  bool empty() const { return rest_.empty(); }

  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    Fill(AsMutableBytes(&value, sizeof(value)));
    return value;
  }
  bool Flag() { return (Take<uint8_t>() & 1) != 0; }
  // Of two bytes, in [0, bound). Requires bound of 1 to 65,536.
  size_t Below(size_t bound) { return Take<uint16_t>() % bound; }
  void Fill(MutableBytes to) {
    const Bytes from = TakeBytes(to.size());
    if (!from.empty()) std::memcpy(to.data(), from.data(), from.size());
    if (from.size() < to.size()) {
      std::memset(to.data() + from.size(), 0, to.size() - from.size());
    }
  }
  // As many as are left, at most `bytes`.
  Bytes TakeBytes(size_t bytes) {
    const Bytes taken = rest_.subspan(0, std::min(bytes, rest_.size()));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  Bytes TakeRest() { return TakeBytes(rest_.size()); }

 private:
  Bytes rest_;
};

// Up to seven changes to what an encoder wrote, so that a short input reaches deep into a long
// payload: other bytes, a few in or out, or an end.
inline void Damage(FuzzInput& input, std::vector<std::byte>& payload) {
  for (int changes = input.Take<uint8_t>() & 7; changes > 0 && !payload.empty(); --changes) {
    const auto kind = input.Take<uint8_t>();
    const size_t at = input.Take<uint32_t>() % payload.size();
    const auto where = payload.begin() + static_cast<ptrdiff_t>(at);
    const auto byte = input.Take<std::byte>();
    switch (kind % 5) {
      case 0:
        *where = byte;
        break;
      case 1:
        *where ^= byte;
        break;
      case 2:
        payload.insert(where, 1 + (kind >> 6), byte);
        break;
      case 3:
        payload.erase(where);
        break;
      default:
        payload.resize(at);
        break;
    }
  }
}

// The other way round: an input that makes a target draw these values.
class SeedBuilder {
 public:
  template <typename T>
  SeedBuilder& Add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  SeedBuilder& AddFlag(bool flag) { return Add(static_cast<uint8_t>(flag)); }
  SeedBuilder& AddBelow(size_t value) { return Add(static_cast<uint16_t>(value)); }
  SeedBuilder& AddBytes(Bytes bytes) {
    text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return *this;
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace forebay::fuzz

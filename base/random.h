#pragma once

#include <array>
#include <cstdint>

namespace forebay {

// 128 random bits of the kernel: boot epochs, session ids.
using Uint128Bytes = std::array<uint8_t, 16>;
Uint128Bytes RandomId();

// A small seeded generator for simulations, placement tests and jitter; not for secrets.
// Source   splitmix64 (S. Vigna, public domain description).
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, bound). Requires bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // True with probability `p` of 0 to 1.
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }

 private:
  uint64_t state_;
};

}  // namespace forebay

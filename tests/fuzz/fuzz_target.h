#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// What each *_fuzz.cc defines. The preset fuzz links it to libFuzzer; every other build links it to
// replay.cc, so that the same properties are a unit test. A property is an FB_CHECK: it ends the
// process, which is what both of them wait for.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes);

namespace forebay::fuzz {

// Inputs that get past the first checks: where libFuzzer begins and what the replay mutates.
std::vector<std::string> Seeds();

}  // namespace forebay::fuzz

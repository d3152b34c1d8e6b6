// Linked to every libFuzzer target: before the first input, a target's own seeds are written to the
// corpus folder, the first argument that is a folder.

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    std::error_code error;
    const std::filesystem::path folder = (*argv)[i];
    if (!std::filesystem::is_directory(folder, error)) continue;
    const std::vector<std::string> seeds = forebay::fuzz::Seeds();
    for (size_t seed = 0; seed < seeds.size(); ++seed) {
      std::ofstream(folder / absl::StrCat("seed-", seed), std::ios::binary) << seeds[seed];
    }
    break;
  }
  return 0;
}

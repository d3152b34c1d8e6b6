// A target's properties without libFuzzer: seeded random inputs, and seeds that were damaged a
// little. A failure ends the process; the input is printed before, in hex, to be fed to the target.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/fuzz/fuzz_target.h"

namespace forebay::fuzz {
namespace {

constexpr int kRandomInputs = 5000;
constexpr int kMutatedInputs = 20'000;
// Most targets read a few dozen bytes before what is left of an input is no more than payload.
constexpr size_t kRandomBytesMax = 600;

// What the handler of a fatal signal may read.
const std::string* current_input = nullptr;

void PrintInput(int signal_number) {
  static constexpr char kDigits[] = "0123456789abcdef";
  static char line[2 * 65536 + 1];
  size_t used = 0;
  for (const char c : *current_input) {
    if (used + 2 >= sizeof(line)) break;
    line[used++] = kDigits[static_cast<unsigned char>(c) >> 4];
    line[used++] = kDigits[static_cast<unsigned char>(c) & 15];
  }
  line[used++] = '\n';
  static constexpr char kTitle[] = "the input that failed, for xxd -r -p:\n";
  // Nothing is left to do where stderr is gone.
  if (write(STDERR_FILENO, kTitle, sizeof(kTitle) - 1) < 0) _exit(1);
  if (write(STDERR_FILENO, line, used) < 0) _exit(1);
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

void RunOne(const std::string& input) {
  current_input = &input;
  // An own allocation of exactly this size: AddressSanitizer sees a byte too far.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  EXPECT_EQ(LLVMFuzzerTestOneInput(bytes.data(), bytes.size()), 0);
}

std::string RandomInput(SeededRandom& random) {
  std::string input(random.Below(kRandomBytesMax), '\0');
  for (char& c : input) c = static_cast<char>(random.Next());
  return input;
}

// A few changes of the kinds that libFuzzer makes.
std::string Mutated(std::string input, const std::vector<std::string>& seeds,
                    SeededRandom& random) {
  for (uint64_t changes = 1 + random.Below(4); changes > 0; --changes) {
    const size_t at = random.Below(input.size() + 1);
    switch (random.Below(6)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(random.Next());
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << random.Below(8)));
        break;
      case 2:
        input.insert(at, 1 + random.Below(8), static_cast<char>(random.Next()));
        break;
      case 3:
        input.erase(at, 1 + random.Below(8));
        break;
      case 4: {
        const std::string number(1 + random.Below(8), random.Chance(0.5) ? '\xff' : '\0');
        input.replace(at, std::min(number.size(), input.size() - at), number);
        break;
      }
      default: {
        const std::string& other = seeds[random.Below(seeds.size())];
        input.replace(at, std::string::npos, other, std::min(at, other.size()));
        break;
      }
    }
  }
  return input;
}

class ReplayTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS}) signal(number, PrintInput);
  }
  void TearDown() override {
    for (const int number : {SIGABRT, SIGSEGV, SIGBUS}) signal(number, SIG_DFL);
  }
};

TEST_F(ReplayTest, SeedsPass) {
  ASSERT_FALSE(Seeds().empty());
  for (const std::string& seed : Seeds()) RunOne(seed);
}

TEST_F(ReplayTest, RandomInputsPass) {
  SeededRandom random(/*seed=*/1);
  RunOne("");
  for (int i = 0; i < kRandomInputs; ++i) RunOne(RandomInput(random));
}

TEST_F(ReplayTest, DamagedSeedsPass) {
  const std::vector<std::string> seeds = Seeds();
  SeededRandom random(/*seed=*/2);
  for (int i = 0; i < kMutatedInputs; ++i) {
    RunOne(Mutated(seeds[random.Below(seeds.size())], seeds, random));
  }
}

}  // namespace
}  // namespace forebay::fuzz

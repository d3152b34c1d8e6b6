// forebay-bench: what the pool reaches, each figure beside a ceiling measured in the same run.

#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/bench/pool_bench.h"

namespace forebay::bench {
namespace {

constexpr char kUsage[] =
    R"(forebay-bench [fetch|publish|lookup|view|clients|index|codec|quality|peers|all] [--json]
              [--quick|--smoke] [--peers] [--path=local,tcp,ucx] [--model=FILE]... [--data=FILE]
              [--only=NAME,...] [--more-texts=N] [--check]

  fetch     parts of 4 KiB to 16 MiB into the caller's buffer, checked; beside memcpy or a socket
  publish   the same the other way
  lookup    a chain of 64 pages
  view      64 leased pages in place, without a copy
  clients   1, 2 and 4 clients at once
  index     the index alone, keys a second
  codec     each codec, encoding and decoding
  quality   what each codec, and dropping tokens, costs: bits, errors, KL, perplexity, needles
  peers     Redis and Mooncake Store beside us, where they are installed (also --peers)
  all       all but peers and quality (the default)

  --json    one object a line: name, path, bytes, value, unit, ceiling, ceiling_name, ratio, spread,
            evidence; quality's objects have names of their own
  --model   of quality, a llama2.c checkpoint; else those that are found
  --data    of quality, a file for its objects besides the table
  --only    of quality, the codecs and policies to measure
  --more-texts  of quality, so many more for KL, top-1 and perplexity alone: their noise shrinks
  --check   of quality, fail where a claim at its end does
  --quick   fewer sizes and rounds
  --smoke   as little as shows that everything runs
GB are 1e9 bytes. Ratios are medians over rounds in which ours and the ceiling took turns.
)";

using Bench = absl::Status (*)(const BenchOptions&, Report*);

const std::vector<std::pair<std::string, Bench>>& Benches() {
  static const auto* all = new std::vector<std::pair<std::string, Bench>>{
      {"fetch", BenchFetch}, {"publish", BenchPublish}, {"lookup", BenchLookup},
      {"view", BenchView},   {"clients", BenchClients}, {"index", BenchIndex},
      {"codec", BenchCodec}, {"quality", BenchQuality}, {"peers", BenchPeers}};
  return *all;
}

int Run(int argc, char** argv) {
  BenchOptions options;
  bool json = false;
  std::set<std::string> wanted;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json") {
      json = true;
    } else if (word == "--quick") {
      options.effort = Effort::kQuick;
    } else if (word == "--smoke") {
      options.effort = Effort::kSmoke;
    } else if (word == "--peers") {
      wanted.insert("peers");
    } else if (word.rfind("--path=", 0) == 0) {
      options.paths = absl::StrSplit(word.substr(7), ',');
    } else if (word.rfind("--model=", 0) == 0) {
      options.models.push_back(word.substr(8));
    } else if (word.rfind("--data=", 0) == 0) {
      options.data_file = word.substr(7);
    } else if (word.rfind("--only=", 0) == 0) {
      options.only = absl::StrSplit(word.substr(7), ',');
    } else if (word.rfind("--more-texts=", 0) == 0) {
      uint32_t count = 0;
      if (!absl::SimpleAtoi(word.substr(13), &count)) {
        std::cerr << "forebay-bench: not a number in " << word << "\n" << kUsage;
        return 2;
      }
      options.more_texts = count;
    } else if (word == "--check") {
      options.check = true;
    } else if (word == "--help") {
      std::cout << kUsage;
      return 0;
    } else if (word == "all") {
      for (const auto& [name, bench] : Benches()) {
        if (name != "peers" && name != "quality") wanted.insert(name);
      }
    } else {
      wanted.insert(word);
    }
  }
  if (wanted.empty()) wanted = {"fetch", "publish", "lookup", "view", "clients", "index", "codec"};
  Report report(std::cout, json);
  for (const auto& [name, bench] : Benches()) {
    if (wanted.erase(name) == 0) continue;
    const absl::Status status = bench(options, &report);
    if (!status.ok()) {
      std::cerr << "forebay-bench: " << name << ": " << status.ToString() << "\n";
      return 1;
    }
  }
  if (!wanted.empty()) {
    std::cerr << "forebay-bench: no bench '" << *wanted.begin() << "'\n" << kUsage;
    return 2;
  }
  return 0;
}

}  // namespace
}  // namespace forebay::bench

int main(int argc, char** argv) { return forebay::bench::Run(argc, argv); }

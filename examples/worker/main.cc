// forebay-worker: a Llama inference worker that shares its KV cache through a pool.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "examples/worker/worker.h"

namespace forebay::examples {
namespace {

constexpr char kUsage[] =
    R"(forebay-worker --model FILE [--daemons HOST:PORT,…] [options]
               (--prompt TEXT | --prompt-file FILE | --tokens 1,2,…)

  --role prefill|decode|both   prefill: compute the prompt and publish its pages (default)
                               decode:  fetch what the pool has of it, compute the rest; no publish
                               both:    fetch, compute, publish
  --generate N                 tokens to generate, greedily (32)
  --path auto|local|tcp|ucx    the way to the daemons' data (auto)
  --cache fp32|bf16            what the KV cache holds (fp32)
  --page-tokens N              (16)
  --codec auto|raw|NAME        as what bf16 pages are published (auto)
  --quality CONTRACT           "exact" (default), "near/fair", "coarse", …
  --ucx-transports T, --ucx-devices D, --ucx-gid-index N
                               what UCX may use here, as in UCX_TLS and UCX_NET_DEVICES
  --compare                    decode: first compute everything without the pool, to compare times
  --always-fetch               fetch even where recomputing is estimated to be faster
  --deadline-ms N              for each call to the pool (5000)
  --result FILE                write name=value lines there

With a vocabulary of 256 a prompt is text and tokens are its bytes; other models take --tokens.
)";

struct Arguments {
  std::string model, role = "prefill", result_file, prompt;
  std::vector<uint32_t> tokens;
  std::vector<std::string> daemons;
  PathChoice path = PathChoice::kAuto;
  UcxChoice ucx;
  std::string codec = "auto";
  Worker::Options worker;
  GenerateOptions generate;
  bool compare = false;
};

absl::Status ReadFile(const std::string& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot open ", path));
  text->assign((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return absl::OkStatus();
}

absl::Status ParseNumber(const std::string& flag, const std::string& value, uint32_t* number) {
  if (absl::SimpleAtoi(value, number)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " takes a number, not '", value, "'"));
}

absl::Status ApplyFlag(const std::string& flag, const std::string& value, Arguments* arguments) {
  if (flag == "--model") {
    arguments->model = value;
  } else if (flag == "--role") {
    if (value != "prefill" && value != "decode" && value != "both") {
      return absl::InvalidArgumentError("--role is prefill, decode or both");
    }
    arguments->role = value;
  } else if (flag == "--daemons") {
    arguments->daemons = absl::StrSplit(value, ',', absl::SkipEmpty());
  } else if (flag == "--prompt") {
    arguments->prompt = value;
  } else if (flag == "--prompt-file") {
    return ReadFile(value, &arguments->prompt);
  } else if (flag == "--tokens") {
    for (const absl::string_view word : absl::StrSplit(value, ',', absl::SkipEmpty())) {
      FB_RETURN_IF_ERROR(ParseNumber(flag, std::string(word), &arguments->tokens.emplace_back()));
    }
  } else if (flag == "--generate") {
    return ParseNumber(flag, value, &arguments->generate.token_count);
  } else if (flag == "--deadline-ms") {
    uint32_t ms = 0;
    FB_RETURN_IF_ERROR(ParseNumber(flag, value, &ms));
    arguments->generate.deadline = ms * kMillisecond;
  } else if (flag == "--path") {
    FB_ASSIGN_OR_RETURN(arguments->path, ParsePath(value));
  } else if (flag == "--ucx-transports") {
    arguments->ucx.transports = value;
  } else if (flag == "--ucx-devices") {
    arguments->ucx.devices = value;
  } else if (flag == "--ucx-gid-index") {
    uint32_t index = 0;
    FB_RETURN_IF_ERROR(ParseNumber(flag, value, &index));
    arguments->ucx.gid_index = static_cast<int>(index);
  } else if (flag == "--cache") {
    if (value != "fp32" && value != "bf16") {
      return absl::InvalidArgumentError("--cache is fp32 or bf16");
    }
    arguments->worker.cache = value == "bf16" ? DType::kBf16 : DType::kFp32;
  } else if (flag == "--page-tokens") {
    FB_RETURN_IF_ERROR(ParseNumber(flag, value, &arguments->worker.page_tokens));
    if (arguments->worker.page_tokens == 0 || arguments->worker.page_tokens > 4096) {
      return absl::InvalidArgumentError("--page-tokens is 1 to 4096");
    }
  } else if (flag == "--codec") {
    arguments->codec = value;
  } else if (flag == "--quality") {
    FB_ASSIGN_OR_RETURN(arguments->worker.quality, QualityContract::Parse(value));
  } else if (flag == "--result") {
    arguments->result_file = value;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("unknown flag ", flag));
  }
  return absl::OkStatus();
}

absl::StatusOr<Arguments> ParseArguments(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    std::string flag = argv[i];
    if (flag == "--compare") {
      arguments.compare = true;
      continue;
    }
    if (flag == "--always-fetch") {
      arguments.generate.always_fetch = true;
      continue;
    }
    std::string value;
    if (const size_t equals = flag.find('='); equals != std::string::npos) {
      value = flag.substr(equals + 1);
      flag.resize(equals);
    } else if (++i < argc) {
      value = argv[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(flag, " needs a value"));
    }
    FB_RETURN_IF_ERROR(ApplyFlag(flag, value, &arguments));
  }
  if (arguments.model.empty()) return absl::InvalidArgumentError("--model is missing");
  arguments.generate.fetch = arguments.role != "prefill";
  arguments.generate.publish = arguments.role != "decode";
  return arguments;
}

absl::StatusOr<std::vector<uint32_t>> PromptTokens(const Arguments& arguments,
                                                   const Checkpoint& model) {
  if (!arguments.tokens.empty()) return arguments.tokens;
  if (model.vocabulary != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model ", model.name, " does not read bytes: give --tokens"));
  }
  std::vector<uint32_t> tokens;
  for (const char c : arguments.prompt) tokens.push_back(static_cast<uint8_t>(c));
  return tokens;
}

std::string TextOf(const std::vector<uint32_t>& tokens) {
  std::string text;
  for (const uint32_t token : tokens) {
    const bool printable = token >= 32 && token < 127;
    text += printable ? static_cast<char>(token) : (token == '\n' ? ' ' : '?');
  }
  return text;
}

std::string PathsOf(const FetchResult& fetch) {
  std::vector<std::string> paths;
  if (fetch.bytes_local > 0) paths.push_back("local");
  if (fetch.bytes_tcp > 0) paths.push_back("tcp");
  if (fetch.bytes_ucx > 0) paths.push_back("ucx");
  return paths.empty() ? "none" : absl::StrJoin(paths, "+");
}

std::vector<std::pair<std::string, std::string>> ResultLines(const GenerateResult& r,
                                                             Nanos without_pool_ns) {
  return {
      {"tokens", absl::StrJoin(r.tokens, ",")},
      {"text", TextOf(r.tokens)},
      {"logits_hash", absl::StrCat(absl::Hex(r.logits_hash, absl::kZeroPad16))},
      {"prompt_pages", absl::StrCat(r.prompt_pages)},
      {"hit_pages", absl::StrCat(r.hit_pages)},
      {"fetched_pages", absl::StrCat(r.fetched_pages)},
      {"fetched_bytes", absl::StrCat(r.fetch.bytes)},
      {"path", PathsOf(r.fetch)},
      {"first_token_us", absl::StrCat(r.first_token_ns / kMicrosecond)},
      {"first_token_without_pool_us", absl::StrCat(without_pool_ns / kMicrosecond)},
      {"published_pages", absl::StrCat(r.publish.pages_stored)},
      {"published_bytes", absl::StrCat(r.publish.bytes)},
      {"refused_pages", absl::StrCat(r.publish.pages_refused)},
      {"pool_status", r.pool_status.ToString()},
  };
}

absl::Status Run(const Arguments& arguments) {
  FB_ASSIGN_OR_RETURN(const Checkpoint model, Checkpoint::Load(arguments.model));
  FB_ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, PromptTokens(arguments, model));
  std::unique_ptr<PoolClient> client;
  if (!arguments.daemons.empty()) {
    ClientOptions options;
    for (const std::string& daemon : arguments.daemons) options.daemons.push_back({daemon, 1.0});
    options.path = arguments.path;
    options.ucx = arguments.ucx;
    options.codec = arguments.codec;
    options.name = absl::StrCat("forebay-worker/", arguments.role);
    FB_ASSIGN_OR_RETURN(client, PoolClient::Connect(std::move(options)));
  }
  Nanos without_pool_ns = 0;
  if (arguments.compare) {
    GenerateOptions alone = arguments.generate;
    alone.token_count = 1;
    Worker worker(model, nullptr, arguments.worker);
    FB_ASSIGN_OR_RETURN(const GenerateResult result, worker.Generate(prompt, alone));
    without_pool_ns = result.first_token_ns;
  }
  Worker worker(model, client.get(), arguments.worker);
  FB_ASSIGN_OR_RETURN(const GenerateResult result, worker.Generate(prompt, arguments.generate));
  std::string lines;
  for (const auto& [name, value] : ResultLines(result, without_pool_ns)) {
    absl::StrAppend(&lines, name, "=", value, "\n");
  }
  if (arguments.result_file.empty()) {
    std::cout << lines;
    return absl::OkStatus();
  }
  std::ofstream file(arguments.result_file, std::ios::binary);
  file << lines;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat("cannot write ", arguments.result_file));
  return absl::OkStatus();
}

}  // namespace
}  // namespace forebay::examples

int main(int argc, char** argv) {
  if (argc < 2 || std::string(argv[1]) == "--help") {
    std::cout << forebay::examples::kUsage;
    return argc < 2 ? 2 : 0;
  }
  const absl::StatusOr<forebay::examples::Arguments> arguments =
      forebay::examples::ParseArguments(argc, argv);
  if (!arguments.ok()) {
    std::cerr << "forebay-worker: " << arguments.status().message() << "\n"
              << "Try 'forebay-worker --help'.\n";
    return 2;
  }
  const absl::Status status = forebay::examples::Run(*arguments);
  if (!status.ok()) {
    std::cerr << "forebay-worker: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

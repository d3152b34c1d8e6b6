#include <map>
#include <regex>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/tidy/rules.h"

namespace forebay::tidy {
namespace {

using Folders = std::set<std::string>;

// folder -> the folders that it may include besides itself. tests/ may include anything.
const std::map<std::string, Folders>& AllowedArrows() {
  static const auto* arrows = new std::map<std::string, Folders>{
      {"base", {}},
      {"proto", {"base"}},
      {"codec", {"base"}},
      {"transport", {"base"}},
      {"tiers", {"base"}},
      {"client", {"base", "proto", "codec", "transport"}},
      {"server", {"base", "proto", "codec", "transport", "tiers"}},
      // As an engine would: the client library, and the words that its headers speak.
      {"examples", {"base", "client"}},
      {"deploy", {"base", "proto"}},
  };
  return *arrows;
}

struct ThirdParty {
  const char* header;  // a regular expression over the path between the brackets
  std::vector<std::string> places;
};

const std::vector<ThirdParty>& ThirdParties() {
  static const auto* table = new std::vector<ThirdParty>{
      {"^uc[pst]/", {"transport/ucx/"}},
      {"^infiniband/", {"transport/verbs/", "transport/ucx/"}},
      // proto/grpc_status is the one translation of gRPC's status.
      {"^grpc(pp)?/", {"server/rpc/", "client/rpc/", "proto/grpc_status."}},
      {R"(\.grpc\.pb\.h$)", {"server/rpc/", "client/rpc/"}},
      {"^google/protobuf/",
       {"proto/", "server/rpc/", "client/rpc/", "client/ctl/", "server/config."}},
      {"^openssl/", {"base/", "transport/tcp/"}},
      {"^hwy/", {"codec/"}},
      {R"(^xxh(ash|3)\.h$)", {"base/checksum_kernel.inc"}},
      {"^rocksdb/", {"tiers/nvme/"}},
      {R"(^liburing\.h$)", {"tiers/nvme/"}},
      {"^(cuda|cub/|thrust/|nvml|nccl)", {"codec/cuda/", "tiers/hbm/", "transport/nvlink/"}},
  };
  return *table;
}

struct Include {
  std::string target;
  int line;
};

std::vector<Include> IncludesOf(const std::string& text) {
  static const std::regex kInclude(R"(^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">])",
                                   std::regex::multiline);
  // A file that is commented out is not included; the target itself is a literal and must stay.
  const std::string code = WithoutComments(text);
  std::vector<Include> includes;
  for (std::sregex_iterator match(code.begin(), code.end(), kInclude), end; match != end; ++match) {
    includes.push_back({(*match)[1], LineOf(code, static_cast<size_t>(match->position(1)))});
  }
  return includes;
}

}  // namespace

Faults LayeringFaults(const SourceFile& file) {
  Faults faults;
  if (!IsCpp(file.path)) return faults;
  const std::string folder(TopFolder(file.path));
  for (const Include& include : IncludesOf(file.text)) {
    const std::string where = absl::StrCat(file.path, ":", include.line, ": ");
    if (absl::StrContains(include.target, "/testing/") && !IsTestCode(file.path)) {
      faults.push_back(absl::StrCat(where, "the product must not include ", include.target));
    }
    if (folder == "tests") continue;
    const std::string target(TopFolder(include.target));
    if (target == folder || !absl::StrContains(include.target, "/")) continue;
    const bool is_ours = AllowedArrows().contains(target) || target == "tests";
    const auto allowed = AllowedArrows().find(folder);
    if (!is_ours || (allowed != AllowedArrows().end() && allowed->second.contains(target))) {
      continue;
    }
    faults.push_back(absl::StrCat(where, folder, " must not include ", target));
  }
  return faults;
}

Faults ThirdPartyFaults(const SourceFile& file) {
  Faults faults;
  if (!IsCpp(file.path) || TopFolder(file.path) == "tests") return faults;
  for (const Include& include : IncludesOf(file.text)) {
    for (const ThirdParty& party : ThirdParties()) {
      if (!std::regex_search(include.target, std::regex(party.header))) continue;
      bool allowed = false;
      for (const std::string& place : party.places) {
        allowed = allowed || absl::StartsWith(file.path, place);
      }
      if (allowed) continue;
      faults.push_back(absl::StrCat(file.path, ":", include.line, ": <", include.target,
                                    "> belongs in ", party.places[0], " alone"));
    }
  }
  return faults;
}

}  // namespace forebay::tidy

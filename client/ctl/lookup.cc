#include <fstream>
#include <iterator>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/ctl/spec_of.h"
#include "client/ctl/subcommand.h"
#include "client/pool_client.h"

namespace forebay::ctl {
namespace {

absl::Status AppendTokens(absl::string_view text, std::vector<uint32_t>* tokens) {
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n[]"), absl::SkipEmpty())) {
    uint32_t token = 0;
    if (!absl::SimpleAtoi(word, &token)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", tokens->size(), " is '", word, "', which is no token id"));
    }
    tokens->push_back(token);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> TokensOf(const Flags& flags) {
  std::vector<uint32_t> tokens;
  for (const std::string& word : flags.rest()) FB_RETURN_IF_ERROR(AppendTokens(word, &tokens));
  if (const std::string path = flags.Get("--file"); !path.empty()) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return absl::NotFoundError(absl::StrCat("cannot open the token file ", path));
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    if (flags.Has("--bytes")) {
      for (const char c : text) tokens.push_back(static_cast<uint8_t>(c));
    } else {
      FB_RETURN_IF_ERROR(AppendTokens(text, &tokens));
    }
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError(
        "no token ids: give them as words (1,2,3 or 1 2 3), or --file FILE");
  }
  return tokens;
}

absl::Status RunLookup(const Context& context, const Flags& flags) {
  FB_ASSIGN_OR_RETURN(const std::vector<uint32_t> tokens, TokensOf(flags));
  FB_ASSIGN_OR_RETURN(const uint64_t id, flags.Number("--namespace", 0, 0, UINT32_MAX));
  if (!flags.Has("--namespace")) {
    return absl::InvalidArgumentError(
        "--namespace is missing; 'forebayctl namespaces' lists the ids");
  }
  FB_ASSIGN_OR_RETURN(const NamespaceSpec spec, SpecOf(context, id, flags.Get("--salt")));
  ClientOptions options;
  options.daemons = {{context.daemon, 1.0}};
  options.token = context.token;
  options.name = "forebayctl";
  FB_ASSIGN_OR_RETURN(const std::unique_ptr<PoolClient> client,
                      PoolClient::Connect(std::move(options)));
  FB_ASSIGN_OR_RETURN(const std::shared_ptr<PoolNamespace> ns,
                      client->OpenNamespace(spec, context.deadline).Wait());
  std::vector<PageKey> keys = PageKeysOf(ns->root(), tokens, spec.layout.page_tokens);
  const size_t page_count = keys.size();
  LookupOptions lookup;
  lookup.deadline = context.deadline;
  lookup.probe = true;
  FB_ASSIGN_OR_RETURN(const PrefixHit hit, ns->Lookup(std::move(keys), lookup).Wait());
  const uint64_t hit_tokens = uint64_t{hit.page_count()} * spec.layout.page_tokens;
  if (context.json) {
    context.out << absl::StrFormat(
        "{\"namespace\": %d, \"tokens\": %d, \"pages\": %d, \"hit_pages\": %d, "
        "\"hit_tokens\": %d, \"bytes\": %d}\n",
        id, tokens.size(), page_count, hit.page_count(), hit_tokens,
        hit.page_count() * spec.layout.PageBytes());
    return absl::OkStatus();
  }
  context.out << absl::StrFormat("%d of %d full pages are in the pool: tokens 0 to %d of %d, %s\n",
                                 hit.page_count(), page_count, hit_tokens, tokens.size(),
                                 HumanBytes(hit.page_count() * spec.layout.PageBytes()));
  if (page_count == 0) {
    context.out << "a page holds " << spec.layout.page_tokens
                << " tokens; a shorter tail has no key\n";
  }
  return absl::OkStatus();
}

}  // namespace

extern const Subcommand kLookup{
    .name = "lookup",
    .usage = "--namespace ID [TOKEN_IDS…] [--file FILE]",
    .summary = "how much of a token sequence the pool holds; leases nothing",
    .flags = {{"--namespace", "ID", "as 'forebayctl namespaces' lists it"},
              {"--file", "FILE", "token ids, separated by spaces, commas or lines"},
              {"--bytes", "", "the file's bytes are the token ids (byte-level models)"},
              {"--salt", "SALT", "the namespace's cache salt, if it has one"}},
    .run = RunLookup,
};

}  // namespace forebay::ctl

#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/rpc/admin_client.h"

// forebayctl: what operators type. One file a subcommand, one row in kSubcommands; help text comes
// from the rows.
namespace forebay::ctl {

// What every subcommand gets: the flags that all of them take, already parsed.
struct Context {
  std::string daemon = "127.0.0.1:7400";  // its gRPC control plane
  std::string token;                      // the tenant's, where the daemon asks for one
  bool json = false;
  Nanos deadline = 5 * kSecond;
  std::ostream& out;

  AdminClient Admin() const { return AdminClient(daemon, token, deadline); }
};

// A "--name value" or "--name=value" flag that one subcommand takes.
struct Flag {
  absl::string_view name;   // with its dashes
  absl::string_view value;  // what to call the value in help; empty for a switch
  absl::string_view help;
};

// The flags given to a subcommand, checked against its list.
class Flags {
 public:
  // Splits `args` into flags of `known` and the rest. INVALID_ARGUMENT names an unknown flag and
  // the nearest known one.
  static absl::StatusOr<Flags> Parse(absl::Span<const std::string> args,
                                     absl::Span<const Flag> known);

  bool Has(absl::string_view name) const;
  // The last value given, or `otherwise`.
  std::string Get(absl::string_view name, absl::string_view otherwise = "") const;
  // INVALID_ARGUMENT if the value is no number in [min, max].
  absl::StatusOr<uint64_t> Number(absl::string_view name, uint64_t otherwise, uint64_t min,
                                  uint64_t max) const;
  const std::vector<std::string>& rest() const { return rest_; }

 private:
  std::vector<std::pair<std::string, std::string>> values_;
  std::vector<std::string> rest_;
};

struct Subcommand {
  absl::string_view name;  // "status", "config check"
  absl::string_view usage;
  absl::string_view summary;
  std::vector<Flag> flags;
  absl::Status (*run)(const Context& context, const Flags& flags);
};

extern const Subcommand kStatus;
extern const Subcommand kNamespaces;
extern const Subcommand kLookup;
extern const Subcommand kConfigCheck;
extern const Subcommand kConfigShow;
extern const Subcommand kMetrics;
extern const Subcommand kBench;
extern const Subcommand kExplainCodec;

// Runs what `args` (without the program's name) asks for. Exit codes: 0 done, 1 failed, 2 wrong
// use.
int Run(absl::Span<const std::string> args, std::ostream& out, std::ostream& err);

// "1.5 GiB": for people.
std::string HumanBytes(uint64_t bytes);
// A JSON string literal.
std::string JsonQuote(absl::string_view text);

}  // namespace forebay::ctl

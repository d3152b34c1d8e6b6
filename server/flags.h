#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace forebay {

// What a supervisor may vary on the command line; everything else is in the configuration file.
struct DaemonFlags {
  std::string config;      // a file; empty: defaults, on loopback
  std::string node;        // overrides the configuration's
  std::string log_level;   // likewise
  std::string ready_file;  // written when the daemon is ready: lines "control=…", "data=…"
  bool check = false;
  bool help = false;
  bool version = false;
};

// "--name value" or "--name=value".
//
// Errors   INVALID_ARGUMENT for an unknown flag, with the one that was perhaps meant, for a missing
//          value, and for anything that is no flag.
absl::StatusOr<DaemonFlags> ParseDaemonFlags(absl::Span<const std::string> arguments);

// For --help.
std::string DaemonUsage();

}  // namespace forebay

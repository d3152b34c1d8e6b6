#include "base/status_macros.h"
#include "client/ctl/subcommand.h"
#include "proto/pool_config.h"

namespace forebay::ctl {
namespace {

absl::Status RunConfigCheck(const Context& context, const Flags& flags) {
  if (flags.rest().size() != 1) {
    return absl::InvalidArgumentError("config check takes one file: forebayctl config check FILE");
  }
  const std::string& path = flags.rest()[0];
  FB_RETURN_IF_ERROR(LoadPoolConfig(path).status());
  if (context.json) {
    context.out << "{\"file\": " << JsonQuote(path) << ", \"ok\": true}\n";
  } else {
    context.out << path << ": ok\n";
  }
  return absl::OkStatus();
}

}  // namespace

extern const Subcommand kConfigCheck{
    .name = "config check",
    .usage = "FILE",
    .summary = "says everything that is wrong with a configuration file",
    .flags = {},
    .run = RunConfigCheck,
};

}  // namespace forebay::ctl

// forebay-verbs: the RDMA ports of this host.

#include <cstdio>
#include <cstring>

#include "transport/verbs/verbs_devices.h"

namespace {

constexpr char kUsage[] =
    "usage: forebay-verbs [--json]\n"
    "\n"
    "Lists the RDMA ports of this host: state, rate (lane speed times width), NUMA node, MTU and\n"
    "GIDs. PORT is what `devices` of a UCX data plane takes, the number before a GID what its\n"
    "`gid_index` takes. Prints nothing with --json where there are none.\n";

}  // namespace

int main(int argc, char** argv) {
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0) {
      json = true;
    } else if (std::strcmp(argv[i], "--help") == 0) {
      std::fputs(kUsage, stdout);
      return 0;
    } else {
      std::fprintf(stderr, "forebay-verbs: unknown argument %s\n%s", argv[i], kUsage);
      return 2;
    }
  }
  const auto ports = forebay::VerbsPorts();
  if (!ports.ok()) {
    std::fprintf(stderr, "forebay-verbs: %s\n", ports.status().ToString().c_str());
    return 1;
  }
  std::fputs(
      json ? forebay::VerbsPortsJson(*ports).c_str() : forebay::VerbsPortsText(*ports).c_str(),
      stdout);
  return 0;
}

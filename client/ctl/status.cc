#include <google/protobuf/util/json_util.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "client/ctl/subcommand.h"

namespace forebay::ctl {
namespace {

// Field names as in the proto, and numbers that are zero too: scripts want every field, always.
absl::Status PrintJson(const Context& context, const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(message, &text, options);
  if (!status.ok()) return absl::InternalError(std::string(status.message()));
  context.out << text << "\n";
  return absl::OkStatus();
}

absl::Status RunStatus(const Context& context, const Flags& flags) {
  if (!flags.rest().empty()) return absl::InvalidArgumentError("status takes no words");
  FB_ASSIGN_OR_RETURN(const v1::StatusReply reply, context.Admin().Status());
  if (context.json) return PrintJson(context, reply);
  const double used = reply.capacity_bytes() == 0
                          ? 0
                          : 100.0 * static_cast<double>(reply.used_bytes()) /
                                static_cast<double>(reply.capacity_bytes());
  const v1::SlotCounts& slots = reply.slots();
  context.out << absl::StrFormat(
      "node        %s (%s), up %.0f s, %s\n"
      "boot epoch  %s\n"
      "data plane  %s\n"
      "wire        versions %d to %d\n"
      "memory      %s of %s used (%.1f%%)%s, policy %s\n"
      "pages       %d, of which %d complete; %d frames, %s\n"
      "slots       %d free, %d filling, %d sealed, %d draining, %d in quarantine; %d pins\n"
      "clients     %d sessions, %d leases\n",
      reply.node(), reply.version(), reply.uptime_seconds(),
      reply.serving() ? "serving" : "shutting down", reply.boot_epoch_hex(),
      absl::StrJoin(reply.data_addresses(), "  "), reply.wire_version_min(),
      reply.wire_version_max(), HumanBytes(reply.used_bytes()), HumanBytes(reply.capacity_bytes()),
      used, reply.huge_pages() ? ", huge pages" : "", reply.eviction_policy(), reply.pages(),
      reply.complete_pages(), reply.frames(), HumanBytes(reply.frame_bytes()), slots.free(),
      slots.filling(), slots.sealed(), slots.draining(), slots.quarantine(), slots.pins(),
      reply.sessions(), reply.leases());
  return absl::OkStatus();
}

absl::Status RunNamespaces(const Context& context, const Flags& flags) {
  if (!flags.rest().empty()) return absl::InvalidArgumentError("namespaces takes no words");
  FB_ASSIGN_OR_RETURN(const v1::ListNamespacesReply reply, context.Admin().ListNamespaces());
  if (context.json) return PrintJson(context, reply);
  if (reply.namespaces().empty()) {
    context.out << "no namespace has been opened since this daemon started\n";
    return absl::OkStatus();
  }
  for (const v1::NamespaceStatus& ns : reply.namespaces()) {
    const double hits = ns.lookup_pages() == 0 ? 0
                                               : 100.0 * static_cast<double>(ns.hit_pages()) /
                                                     static_cast<double>(ns.lookup_pages());
    context.out << absl::StrFormat(
        "%d  %s  tenant %s%s%s\n"
        "   %s\n"
        "   %d pages (%d complete), %s; %d sessions; %d lookups, %.1f%% of the pages hit\n",
        ns.namespace_id(), ns.model(), ns.tenant(),
        ns.adapter().empty() ? "" : absl::StrCat(", adapter ", ns.adapter()),
        ns.salted() ? ", salted" : "", ns.layout(), ns.pages(), ns.complete_pages(),
        HumanBytes(ns.frame_bytes()), ns.sessions(), ns.lookups(), hits);
  }
  return absl::OkStatus();
}

absl::Status RunMetrics(const Context& context, const Flags& flags) {
  if (flags.rest().size() > 1) return absl::InvalidArgumentError("metrics takes one name at most");
  FB_ASSIGN_OR_RETURN(const std::string text, context.Admin().Metrics());
  const std::string wanted = flags.rest().empty() ? "" : flags.rest()[0];
  std::string kept;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (absl::StrContains(line, wanted)) absl::StrAppend(&kept, line, "\n");
  }
  if (kept.empty()) {
    return absl::NotFoundError(absl::StrCat("no metric has '", wanted, "' in its name"));
  }
  if (!context.json) {
    context.out << kept;
    return absl::OkStatus();
  }
  std::string separator;
  context.out << "{";
  for (const absl::string_view line : absl::StrSplit(kept, '\n', absl::SkipEmpty())) {
    if (line[0] == '#') continue;
    const size_t space = line.rfind(' ');
    context.out << separator << JsonQuote(line.substr(0, space)) << ": " << line.substr(space + 1);
    separator = ", ";
  }
  context.out << "}\n";
  return absl::OkStatus();
}

absl::Status RunConfigShow(const Context& context, const Flags& flags) {
  if (!flags.rest().empty()) return absl::InvalidArgumentError("config show takes no words");
  FB_ASSIGN_OR_RETURN(const std::string text, context.Admin().ShowConfig());
  if (context.json) {
    context.out << "{\"textproto\": " << JsonQuote(text) << "}\n";
  } else {
    context.out << text;
  }
  return absl::OkStatus();
}

}  // namespace

extern const Subcommand kStatus{
    .name = "status",
    .usage = "",
    .summary = "what a daemon holds and how it is",
    .flags = {},
    .run = RunStatus,
};
extern const Subcommand kNamespaces{
    .name = "namespaces",
    .usage = "",
    .summary = "which models and tenants it holds pages of",
    .flags = {},
    .run = RunNamespaces,
};
extern const Subcommand kMetrics{
    .name = "metrics",
    .usage = "[PART_OF_A_NAME]",
    .summary = "its metrics, in the Prometheus text format",
    .flags = {},
    .run = RunMetrics,
};
extern const Subcommand kConfigShow{
    .name = "config show",
    .usage = "",
    .summary = "the configuration that it runs with, defaults filled in, secrets left out",
    .flags = {},
    .run = RunConfigShow,
};

}  // namespace forebay::ctl

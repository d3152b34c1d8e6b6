#include "transport/verbs/verbs_devices.h"

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace forebay {
namespace {

struct CloseDevice {
  void operator()(ibv_context* context) const { ibv_close_device(context); }
};
struct FreeList {
  void operator()(ibv_device** list) const { ibv_free_device_list(list); }
};

const char* StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "init";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    case IBV_PORT_ACTIVE_DEFER:
      return "defer";
    default:
      return "none";
  }
}

const char* LinkLayerName(uint8_t link_layer) {
  switch (link_layer) {
    case IBV_LINK_LAYER_ETHERNET:
      return "ethernet";
    case IBV_LINK_LAYER_INFINIBAND:
      return "infiniband";
    default:
      return "unspecified";
  }
}

std::string GidTypeName(uint32_t type) {
  switch (type) {
    case IBV_GID_TYPE_IB:
      return "ib";
    case IBV_GID_TYPE_ROCE_V1:
      return "roce-v1";
    case IBV_GID_TYPE_ROCE_V2:
      return "roce-v2";
    default:
      return "";
  }
}

int MtuBytes(ibv_mtu mtu) {
  // IBV_MTU_256 is 1, and each step doubles.
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128 << mtu : 0;
}

int NumaNodeOf(const ibv_device& device) {
  std::ifstream file(absl::StrCat(device.ibdev_path, "/device/numa_node"));
  int node = -1;
  return file >> node ? node : -1;
}

std::vector<VerbsGid> GidsOf(ibv_context* context, uint8_t port, int table_length) {
  std::vector<VerbsGid> gids;
  for (int index = 0; index < table_length; ++index) {
    ibv_gid_entry entry{};
    if (ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), &entry, 0) != 0) continue;
    const auto* raw = entry.gid.raw;
    if (std::all_of(raw, raw + sizeof(entry.gid.raw), [](uint8_t byte) { return byte == 0; })) {
      continue;
    }
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET6, raw, text, sizeof(text));
    gids.push_back({index, text, GidTypeName(entry.gid_type)});
  }
  return gids;
}

absl::Status AddPorts(ibv_device* device, std::vector<VerbsPort>& ports) {
  const std::string name = ibv_get_device_name(device);
  const std::unique_ptr<ibv_context, CloseDevice> context(ibv_open_device(device));
  if (context == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("RDMA device ", name, " cannot be opened: ", strerror(errno)));
  }
  ibv_device_attr attributes{};
  if (const int error = ibv_query_device(context.get(), &attributes)) {
    return absl::UnavailableError(
        absl::StrCat("RDMA device ", name, " cannot be asked: ", strerror(error)));
  }
  for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
    ibv_port_attr port{};
    if (const int error = ibv_query_port(context.get(), static_cast<uint8_t>(number), &port)) {
      return absl::UnavailableError(
          absl::StrCat("RDMA port ", name, ":", number, " cannot be asked: ", strerror(error)));
    }
    VerbsPort& found = ports.emplace_back();
    found.device = name;
    found.port = number;
    found.state = StateName(port.state);
    found.link_layer = LinkLayerName(port.link_layer);
    found.rate_gbps = VerbsRateGbps(port.active_speed, port.active_width);
    found.numa_node = NumaNodeOf(*device);
    found.active_mtu_bytes = MtuBytes(port.active_mtu);
    found.gids = GidsOf(context.get(), static_cast<uint8_t>(number), port.gid_tbl_len);
  }
  return absl::OkStatus();
}

// Names of the kernel and addresses: nothing in them needs more than this.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

std::string VerbsPort::ucx_device() const { return absl::StrCat(device, ":", port); }

double VerbsRateGbps(uint8_t active_speed, uint8_t active_width) {
  double lane_gbps = 0;
  switch (active_speed) {
    case 1:  // SDR
      lane_gbps = 2.5;
      break;
    case 2:  // DDR
      lane_gbps = 5;
      break;
    case 4:  // QDR
    case 8:  // FDR10
      lane_gbps = 10;
      break;
    case 16:  // FDR
      lane_gbps = 14;
      break;
    case 32:  // EDR
      lane_gbps = 25;
      break;
    case 64:  // HDR
      lane_gbps = 50;
      break;
    case 128:  // NDR
      lane_gbps = 100;
      break;
    default:
      return 0;
  }
  switch (active_width) {
    case 1:
      return lane_gbps;
    case 2:
      return 4 * lane_gbps;
    case 4:
      return 8 * lane_gbps;
    case 8:
      return 12 * lane_gbps;
    case 16:
      return 2 * lane_gbps;
    default:
      return 0;
  }
}

absl::StatusOr<std::vector<VerbsPort>> VerbsPorts() {
  int count = 0;
  const std::unique_ptr<ibv_device*[], FreeList> list(ibv_get_device_list(&count));
  std::vector<VerbsPort> ports;
  if (list == nullptr) {
    // A kernel without RDMA has no list at all.
    if (errno == ENOSYS || errno == ENOENT) return ports;
    return absl::UnavailableError(absl::StrCat("list of RDMA devices: ", strerror(errno)));
  }
  for (int i = 0; i < count; ++i) FB_RETURN_IF_ERROR(AddPorts(list[i], ports));
  return ports;
}

std::string VerbsPortsText(const std::vector<VerbsPort>& ports) {
  if (ports.empty()) return "no RDMA devices\n";
  std::string text = absl::StrFormat("%-14s %-7s %-12s %8s %5s %5s  %s\n", "PORT", "STATE", "LINK",
                                     "GBIT/S", "NUMA", "MTU", "GIDS");
  for (const VerbsPort& port : ports) {
    const std::string gids =
        absl::StrJoin(port.gids, ", ", [](std::string* out, const VerbsGid& gid) {
          absl::StrAppend(out, gid.index, "=", gid.address,
                          gid.type.empty() ? "" : absl::StrCat(" (", gid.type, ")"));
        });
    absl::StrAppendFormat(&text, "%-14s %-7s %-12s %8g %5s %5d  %s\n", port.ucx_device(),
                          port.state, port.link_layer, port.rate_gbps,
                          port.numa_node < 0 ? "-" : absl::StrCat(port.numa_node),
                          port.active_mtu_bytes, gids);
  }
  return text;
}

std::string VerbsPortsJson(const std::vector<VerbsPort>& ports) {
  std::string text;
  for (const VerbsPort& port : ports) {
    const std::string gids =
        absl::StrJoin(port.gids, ", ", [](std::string* out, const VerbsGid& gid) {
          absl::StrAppend(out, "{\"index\": ", gid.index, ", \"address\": ", Quoted(gid.address),
                          ", \"type\": ", Quoted(gid.type), "}");
        });
    absl::StrAppend(
        &text, "{\"device\": ", Quoted(port.device), ", \"port\": ", port.port,
        ", \"state\": ", Quoted(port.state), ", \"link_layer\": ", Quoted(port.link_layer),
        ", \"rate_gbps\": ", port.rate_gbps, ", \"numa_node\": ", port.numa_node,
        ", \"active_mtu_bytes\": ", port.active_mtu_bytes, ", \"gids\": [", gids, "]}\n");
  }
  return text;
}

}  // namespace forebay

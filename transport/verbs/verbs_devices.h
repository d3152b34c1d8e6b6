#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

// What this host's RDMA ports are: asked of libibverbs, for people, for the daemon's choice of
// devices and for the estimate of a path. Data never passes here; that is transport/ucx.
namespace forebay {

struct VerbsGid {
  int index = 0;        // UCX_IB_GID_INDEX
  std::string address;  // "fe80::5054:ff:fe00:1", "::ffff:10.0.0.1"
  std::string type;     // "ib", "roce-v1", "roce-v2"; "" where the kernel does not say
};

// One port of one device.
struct VerbsPort {
  std::string device;      // "mlx5_0"
  int port = 0;            // from 1
  std::string state;       // "active", "down", "init", "armed", "defer", "none"
  std::string link_layer;  // "ethernet", "infiniband", "unspecified"
  double rate_gbps = 0;    // Gbit/s of the whole port: lane speed times width; 0: unknown
  int numa_node = -1;      // -1: none, or the kernel does not say
  int active_mtu_bytes = 0;
  std::vector<VerbsGid> gids;  // those that are set

  // "mlx5_0:1", as UCX_NET_DEVICES takes it.
  std::string ucx_device() const;
};

// All ports, in the order of the kernel. Empty on a host without RDMA: that is no error.
//
// Errors   UNAVAILABLE where a device is listed and cannot be opened or asked.
// Threads  any; it opens the devices and closes them again.
absl::StatusOr<std::vector<VerbsPort>> VerbsPorts();

// Gbit/s of the fields active_speed and active_width of ibv_port_attr; 0 for values unknown to us.
double VerbsRateGbps(uint8_t active_speed, uint8_t active_width);

// A table for people; "no RDMA devices" for none.
std::string VerbsPortsText(const std::vector<VerbsPort>& ports);
// One JSON object a line, a port each.
std::string VerbsPortsJson(const std::vector<VerbsPort>& ports);

}  // namespace forebay

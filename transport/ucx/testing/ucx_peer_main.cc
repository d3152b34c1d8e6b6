// ucx_peer: the other process of a test, to be killed, stopped or cut off.
//
//   ucx_peer serve                     prints "address ucx:…", answers each message whose checksum
//                                      is right, until stdin ends
//   ucx_peer send ADDRESS COUNT BYTES  sends, waits for every answer, prints the rate
//   ucx_peer watch ADDRESS SECONDS     sends until the endpoint closes; says how long after the
//                                      last answer that was. Status 1 if it did not close in time
//
// Devices as in ucx_test_options.h; FOREBAY_TEST_UCX_TURN says which of them.

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/random.h"
#include "transport/ucx/testing/ucx_test_options.h"
#include "transport/ucx/ucx_transport.h"

namespace forebay {
namespace {

constexpr size_t kWatchBytes = 256 * 1024;
constexpr uint64_t kInFlightMax = 8;

// Sends whole payloads with their checksum as header, and answers those that came right.
class Peer final : public TransportHandler {
 public:
  void OnConnected(EndpointId endpoint, const PeerDescription&) override { connected = endpoint; }

  Landing OnMessage(EndpointId endpoint, Bytes header, uint64_t payload_bytes) override {
    if (payload_bytes == 0) {
      ++answers;
      last_answer = clock.Now();
      return Landing::Drop();
    }
    auto arrival = std::make_unique<Arrival>();
    arrival->endpoint = endpoint;
    std::memcpy(&arrival->checksum_expected, header.data(), sizeof(uint64_t));
    if (!spare.empty()) {  // fresh memory would cost more than the transfer
      arrival->bytes = std::move(spare.back());
      spare.pop_back();
    }
    arrival->bytes.resize(payload_bytes);
    Landing landing;
    landing.segments.push_back(
        {AsMutableBytes(arrival->bytes.data(), arrival->bytes.size()), &arrival->checksum});
    landing.token = reinterpret_cast<uint64_t>(arrival.get());
    arrivals.push_back(std::move(arrival));
    return landing;
  }

  void OnLanded(EndpointId, uint64_t token, const absl::Status& status) override {
    auto found = std::find_if(arrivals.begin(), arrivals.end(), [&](const auto& arrival) {
      return reinterpret_cast<uint64_t>(arrival.get()) == token;
    });
    const std::unique_ptr<Arrival> arrival = std::move(*found);
    arrivals.erase(found);
    if (!status.ok()) return;
    if (arrival->checksum.Digest() != arrival->checksum_expected) {
      std::fprintf(stderr, "ucx_peer: a payload of %zu bytes came wrong\n", arrival->bytes.size());
      std::_Exit(3);
    }
    spare.push_back(std::move(arrival->bytes));
    transport->Send(arrival->endpoint, {.header = AsBytes("ok", 2), .payload = {}, .token = 0});
  }

  void OnSent(EndpointId, uint64_t, const absl::Status&) override {}
  void OnClosed(EndpointId endpoint, const absl::Status& status) override {
    if (endpoint == connected || endpoint == wanted) {
      closed = true;
      why = status;
    }
  }

  // Turns until `done`, or for `limit`. False at the limit.
  bool Run(const std::function<bool()>& done, Nanos limit) {
    const Nanos until = clock.Now() + limit;
    while (!done()) {
      const Nanos now = clock.Now();
      if (now > until) return false;
      if (transport->Poll(now)) continue;
      std::vector<int> fds;
      if (!transport->PrepareToSleep(fds)) continue;
      std::vector<pollfd> polled = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0}};
      if (!watches_stdin) polled.clear();
      for (const int fd : fds) polled.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      poll(polled.data(), polled.size(), /*timeout=*/20);
      if (watches_stdin && polled[0].revents != 0) return true;
    }
    return true;
  }

  void SendOne(const std::vector<std::byte>& payload, uint64_t checksum) {
    OutgoingMessage message;
    message.header = AsBytes(&checksum, sizeof(checksum));
    message.payload.push_back(AsBytes(payload.data(), payload.size()));
    message.token = ++sent;
    transport->Send(wanted, std::move(message));
  }

  struct Arrival {
    EndpointId endpoint = 0;
    uint64_t checksum_expected = 0;
    RunningChecksum checksum;
    std::vector<std::byte> bytes;
  };

  SystemClock clock;
  UcxTransport* transport = nullptr;
  bool watches_stdin = false;
  EndpointId connected = 0;
  EndpointId wanted = 0;
  bool closed = false;
  absl::Status why;
  uint64_t sent = 0;
  uint64_t answers = 0;
  Nanos last_answer = 0;
  std::vector<std::unique_ptr<Arrival>> arrivals;
  std::vector<std::vector<std::byte>> spare;
};

std::vector<std::byte> RandomBytes(size_t bytes) {
  std::vector<std::byte> data(bytes);
  SeededRandom random(bytes);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random.Next() >> 32);
  return data;
}

int Serve(Peer& peer) {
  const absl::StatusOr<std::string> address = peer.transport->Listen("ucx:127.0.0.1:0");
  if (!address.ok()) {
    std::fprintf(stderr, "ucx_peer: %s\n", address.status().ToString().c_str());
    return 1;
  }
  std::printf("address %s\n", address->c_str());
  std::fflush(stdout);
  peer.watches_stdin = true;
  peer.Run([] { return false; }, 3600 * kSecond);
  return 0;
}

bool Connect(Peer& peer, const char* address, Nanos limit) {
  const absl::StatusOr<EndpointId> endpoint =
      peer.transport->Connect(address, peer.clock.Now() + limit);
  if (endpoint.ok()) peer.wanted = *endpoint;
  const bool done = endpoint.ok() &&
                    peer.Run([&] { return peer.connected != 0 || peer.closed; }, 2 * limit) &&
                    !peer.closed;
  if (!done) {
    const absl::Status status = endpoint.ok() ? peer.why : endpoint.status();
    std::fprintf(stderr, "ucx_peer: no connection: %s\n", status.ToString().c_str());
  }
  return done;
}

int SendMany(Peer& peer, const char* address, uint64_t count, size_t bytes, Nanos limit) {
  // Before the connection: who makes bytes for a second answers no pings.
  const std::vector<std::byte> payload = RandomBytes(bytes);
  const uint64_t checksum = ChecksumOf(AsBytes(payload.data(), payload.size()));
  if (!Connect(peer, address, limit)) return 1;
  const Nanos begin = peer.clock.Now();
  const bool done = peer.Run(
      [&] {
        while (peer.sent < count && peer.sent - peer.answers < kInFlightMax) {
          peer.SendOne(payload, checksum);
        }
        return peer.answers == count || peer.closed;
      },
      limit);
  const double seconds = static_cast<double>(peer.clock.Now() - begin) * 1e-9;
  std::printf("%llu of %llu answers, %.1f MB/s %s\n", static_cast<unsigned long long>(peer.answers),
              static_cast<unsigned long long>(count),
              static_cast<double>(peer.answers * bytes) * 1e-6 / seconds,
              peer.closed ? peer.why.ToString().c_str() : "");
  return done && peer.answers == count ? 0 : 1;
}

int Watch(Peer& peer, Nanos limit) {
  const std::vector<std::byte> payload = RandomBytes(kWatchBytes);
  const uint64_t checksum = ChecksumOf(AsBytes(payload.data(), payload.size()));
  bool said = false;
  const bool done = peer.Run(
      [&] {
        if (peer.sent == peer.answers && !peer.closed) peer.SendOne(payload, checksum);
        if (peer.answers > 0 && !said) {
          std::printf("first answer\n");
          std::fflush(stdout);
          said = true;
        }
        return peer.closed;
      },
      limit);
  std::printf("%llu answers; closed %.2f s after the last: %s\n",
              static_cast<unsigned long long>(peer.answers),
              static_cast<double>(peer.clock.Now() - peer.last_answer) * 1e-9,
              done ? peer.why.ToString().c_str() : "not at all");
  return done && peer.answers > 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  const testing::UcxTestSetting setting = testing::UcxTestSettingFromEnvironment();
  size_t turn = 0;
  if (const char* text = std::getenv("FOREBAY_TEST_UCX_TURN"))
    turn = std::strtoul(text, nullptr, 10);
  Peer peer;
  auto transport = UcxTransport::Create(peer.clock, peer, setting.Apply({}, turn));
  if (!transport.ok()) {
    std::fprintf(stderr, "ucx_peer: %s\n", transport.status().ToString().c_str());
    return 1;
  }
  peer.transport = transport->get();
  const std::string mode = argc > 1 ? argv[1] : "";
  const Nanos limit = 60 * kSecond * setting.time_scale;
  if (mode == "serve" && argc == 2) return Serve(peer);
  if (mode == "send" && argc == 5) {
    return SendMany(peer, argv[2], std::strtoull(argv[3], nullptr, 10),
                    std::strtoull(argv[4], nullptr, 10), limit);
  }
  if (mode == "watch" && argc == 4 && Connect(peer, argv[2], limit)) {
    return Watch(peer, static_cast<Nanos>(std::strtod(argv[3], nullptr) * 1e9));
  }
  std::fprintf(stderr,
               "usage: ucx_peer serve | send ADDRESS COUNT BYTES | watch ADDRESS SECONDS\n");
  return 2;
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) { return forebay::Main(argc, argv); }

#include "tests/bench/ucx_pair.h"

#if defined(FOREBAY_HAVE_UCX)
#include <sys/socket.h>
#include <sys/wait.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/status_macros.h"
#include "transport/ucx/ucx_status.h"
#include "transport/ucx/ucx_worker.h"

namespace forebay::bench {
namespace {

constexpr unsigned kMessageId = 1;
constexpr int kSendsOutMax = 16;
constexpr Nanos kPatience = 60 * kSecond;

// What the parent asks its child for; the other side of what it does itself.
struct Order {
  uint64_t child_sends = 0;
  uint64_t message = 0;
  uint64_t total = 0;
};

bool WriteAll(int fd, const void* data, size_t bytes) {
  return write(fd, data, bytes) == static_cast<ssize_t>(bytes);
}

bool ReadAll(int fd, void* data, size_t bytes) {
  return recv(fd, data, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
}

double Rate(uint64_t bytes, Nanos taken) {
  return static_cast<double>(bytes) / static_cast<double>(std::max<Nanos>(taken, 1));
}

}  // namespace

// One worker with its endpoint to the other.
class UcxPair::End {
 public:
  // The two ends tell each other their addresses over `fd`.
  static absl::StatusOr<std::unique_ptr<End>> Open(int fd) {
    auto end = std::make_unique<End>();
    UcxTransportOptions options;
    options.devices = "lo";
    FB_ASSIGN_OR_RETURN(end->worker_, UcxWorker::Create(options));
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = kMessageId;
    handler.cb = &End::OnMessage;
    handler.arg = end.get();
    FB_RETURN_IF_ERROR(UcxStatus(ucp_worker_set_am_recv_handler(end->worker_->get(), &handler),
                                 "set a handler of active messages"));
    const std::string& own = end->worker_->address();
    const uint64_t own_bytes = own.size();
    uint64_t peer_bytes = 0;
    std::string peer;
    bool met = WriteAll(fd, &own_bytes, sizeof(own_bytes)) && WriteAll(fd, own.data(), own_bytes) &&
               ReadAll(fd, &peer_bytes, sizeof(peer_bytes)) && peer_bytes < (1 << 20);
    peer.resize(met ? peer_bytes : 0);
    met = met && ReadAll(fd, peer.data(), peer_bytes);
    if (!met) return absl::UnavailableError("the UCX pair did not meet");
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
    FB_RETURN_IF_ERROR(
        UcxStatus(ucp_ep_create(end->worker_->get(), &params, &end->peer_), "reach the peer"));
    return end;
  }

  absl::Status Send(const std::byte* from, size_t span, size_t message, size_t total) {
    for (size_t done = 0; done < total; done += message) {
      FB_RETURN_IF_ERROR(Progress([&] { return sends_out_ < kSendsOutMax; }));
      ucp_request_param_t param{};
      param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
      param.cb.send = [](void* request, ucs_status_t status, void* self) {
        auto& end = *static_cast<End*>(self);
        --end.sends_out_;
        if (status != UCS_OK) end.failed_ = status;
        ucp_request_free(request);
      };
      param.user_data = this;
      void* const request =
          ucp_am_send_nbx(peer_, kMessageId, nullptr, 0, from + done % span, message, &param);
      if (UCS_PTR_IS_PTR(request)) {
        ++sends_out_;
      } else {
        FB_RETURN_IF_ERROR(UcxStatus(UCS_PTR_STATUS(request), "send"));
      }
    }
    return Progress([&] { return sends_out_ == 0; });
  }

  // Makes ready for `total` bytes; before the other end begins to send.
  void Expect(std::byte* to, size_t span) {
    to_ = to;
    span_ = span;
    begun_ = 0;
    received_ = 0;
  }
  absl::Status Receive(size_t total) {
    return Progress([&] { return received_ == total; });
  }

 private:
  template <typename Done>
  absl::Status Progress(const Done& done) {
    const SystemClock clock;
    const Nanos until = clock.Now() + kPatience;
    for (uint64_t turn = 1; !done(); ++turn) {
      ucp_worker_progress(worker_->get());
      if (failed_ != UCS_OK) return UcxStatus(failed_, "move an active message");
      if (turn % 4096 == 0 && clock.Now() > until) {
        return absl::DeadlineExceededError("raw UCX active messages do not arrive");
      }
    }
    return absl::OkStatus();
  }

  static ucs_status_t OnMessage(void* self, const void* /*header*/, size_t /*header_bytes*/,
                                void* data, size_t bytes, const ucp_am_recv_param_t* param) {
    auto& end = *static_cast<End*>(self);
    std::byte* const to = end.to_ + end.begun_ % end.span_;
    end.begun_ += bytes;
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      std::memcpy(to, data, bytes);
      end.received_ += bytes;
      return UCS_OK;
    }
    ucp_request_param_t receive{};
    receive.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    receive.cb.recv_am = [](void* request, ucs_status_t status, size_t got, void* user) {
      static_cast<End*>(user)->received_ += got;
      if (status != UCS_OK) static_cast<End*>(user)->failed_ = status;
      ucp_request_free(request);
    };
    receive.user_data = self;
    void* const request = ucp_am_recv_data_nbx(end.worker_->get(), data, to, bytes, &receive);
    if (UCS_PTR_IS_ERR(request)) end.failed_ = UCS_PTR_STATUS(request);
    if (request == nullptr) end.received_ += bytes;
    return UCS_INPROGRESS;
  }

  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h peer_ = nullptr;
  int sends_out_ = 0;
  ucs_status_t failed_ = UCS_OK;
  std::byte* to_ = nullptr;
  size_t span_ = 0;
  uint64_t begun_ = 0;
  uint64_t received_ = 0;

  // The child's loop.
  friend class UcxPair;
  [[noreturn]] static void Serve(int fd) {
    auto end = Open(fd);
    if (!end.ok()) _exit(1);
    // As many bytes as a pool would have resident: the sender's reads miss the cache alike.
    Buffer memory(256 << 20, 3);
    Order order;
    std::byte confirmed{1};
    while (ReadAll(fd, &order, sizeof(order))) {
      const size_t span = memory.bytes() / order.message * order.message;
      absl::Status status;
      if (order.child_sends != 0) {
        status = (*end)->Send(memory.data(), span, order.message, order.total);
      } else {
        (*end)->Expect(memory.data(), span);
        if (!WriteAll(fd, &confirmed, 1)) _exit(1);
        status = (*end)->Receive(order.total);
      }
      if (!status.ok() || !WriteAll(fd, &confirmed, 1)) _exit(1);
    }
    _exit(0);
  }
};

absl::StatusOr<std::unique_ptr<UcxPair>> UcxPair::Start() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return absl::UnavailableError("no socket pair");
  }
  const int child = fork();
  if (child < 0) return absl::UnavailableError("cannot fork");
  if (child == 0) {
    close(fds[0]);
    End::Serve(fds[1]);
  }
  close(fds[1]);
  FB_ASSIGN_OR_RETURN(std::unique_ptr<End> end, End::Open(fds[0]));
  return std::unique_ptr<UcxPair>(new UcxPair(fds[0], child, std::move(end)));
}

UcxPair::UcxPair(int fd, int child, std::unique_ptr<End> end)
    : fd_(fd), child_(child), end_(std::move(end)) {}

UcxPair::~UcxPair() {
  close(fd_);
  waitpid(child_, nullptr, 0);
}

absl::StatusOr<double> UcxPair::ReceiveRate(Buffer& to, size_t message, size_t total) {
  const SystemClock clock;
  const Order order{1, message, total / message * message};
  end_->Expect(to.data(), to.bytes() / message * message);
  const Nanos start = clock.Now();
  if (!WriteAll(fd_, &order, sizeof(order))) return absl::UnavailableError("the UCX pair broke");
  FB_RETURN_IF_ERROR(end_->Receive(order.total));
  const Nanos taken = clock.Now() - start;
  std::byte confirmed;
  if (!ReadAll(fd_, &confirmed, 1)) return absl::UnavailableError("the UCX pair broke");
  return Rate(order.total, taken);
}

absl::StatusOr<double> UcxPair::SendRate(Buffer& from, size_t message, size_t total) {
  const SystemClock clock;
  const Order order{0, message, total / message * message};
  std::byte confirmed;
  const bool ready = WriteAll(fd_, &order, sizeof(order)) && ReadAll(fd_, &confirmed, 1);
  if (!ready) return absl::UnavailableError("the UCX pair broke");
  const Nanos start = clock.Now();
  FB_RETURN_IF_ERROR(
      end_->Send(from.data(), from.bytes() / message * message, message, order.total));
  if (!ReadAll(fd_, &confirmed, 1)) return absl::UnavailableError("the UCX pair broke");
  return Rate(order.total, clock.Now() - start);
}

}  // namespace forebay::bench

#else

namespace forebay::bench {

class UcxPair::End {};

absl::StatusOr<std::unique_ptr<UcxPair>> UcxPair::Start() {
  return absl::UnimplementedError("built without UCX");
}

UcxPair::~UcxPair() = default;

absl::StatusOr<double> UcxPair::ReceiveRate(Buffer& /*to*/, size_t /*message*/, size_t /*total*/) {
  return absl::UnimplementedError("built without UCX");
}

absl::StatusOr<double> UcxPair::SendRate(Buffer& /*from*/, size_t /*message*/, size_t /*total*/) {
  return absl::UnimplementedError("built without UCX");
}

}  // namespace forebay::bench

#endif

#include "client/rpc/grpc_session_opener.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "proto/convert.h"
#include "proto/forebay/v1/pool.grpc.pb.h"
#include "proto/grpc_status.h"

namespace forebay {
namespace {

// How soon gRPC tries an address again on its own, which must not outlast the client's own
// back-off.
constexpr int kReconnectMsMin = 20;
constexpr int kReconnectMsMax = 500;
// How long one attempt may take, which gRPC calls the least back-off: a daemon that is busy or far
// away is not away. A refused attempt ends at once all the same.
constexpr int kConnectMs = 5000;

constexpr char kTokenKey[] = "forebay-token";

struct Call {
  grpc::ClientContext context;
  v1::OpenSessionRequest request;
  v1::OpenSessionReply reply;
  OpenSessionDone done;
};

}  // namespace

struct GrpcSessionOpener::State {
  std::string token;
  absl::flat_hash_map<std::string, std::unique_ptr<v1::Pool::Stub>> stubs;

  absl::Mutex mutex;
  absl::flat_hash_set<Call*> calls ABSL_GUARDED_BY(mutex);
  uint32_t contexts ABSL_GUARDED_BY(mutex) = 0;  // of calls; each holds its channel

  v1::Pool::Stub& StubFor(absl::string_view address) {
    std::unique_ptr<v1::Pool::Stub>& stub = stubs[address];
    if (stub == nullptr) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMsMin);
      arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
      arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMsMax);
      // A proxy of the environment has no business between a worker and its pool.
      arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
      stub = v1::Pool::NewStub(grpc::CreateCustomChannel(
          std::string(address), grpc::InsecureChannelCredentials(), arguments));
    }
    return *stub;
  }

  void End(Call* call, const grpc::Status& status) {
    call->done(status.ok() ? FromProto(call->reply)
                           : absl::StatusOr<OpenSessionReply>(FromGrpcStatus(status)));
    {
      absl::MutexLock lock(&mutex);
      calls.erase(call);
    }
    delete call;
    absl::MutexLock lock(&mutex);
    --contexts;
  }
};

GrpcSessionOpener::GrpcSessionOpener(std::string token) : state_(std::make_shared<State>()) {
  state_->token = std::move(token);
}

GrpcSessionOpener::~GrpcSessionOpener() {
  {
    absl::MutexLock lock(&state_->mutex);
    for (Call* call : state_->calls) call->context.TryCancel();
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mutex) {
      return state_->contexts == 0;
    };
    state_->mutex.Await(absl::Condition(&none));
  }
  // Here and not on gRPC's thread, where the last answer may still hold the state: the last channel
  // of a process joins that thread, which cannot join itself and would go on in freed memory.
  state_->stubs.clear();
}

void GrpcSessionOpener::Open(absl::string_view control_address, const OpenSessionRequest& request,
                             Nanos deadline, OpenSessionDone done) {
  auto* call = new Call;
  call->request = ToProto(request);
  call->done = std::move(done);
  if (!state_->token.empty()) call->context.AddMetadata(kTokenKey, state_->token);
  const Nanos left = std::max<Nanos>(deadline - SystemClock().Now(), 0);
  call->context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(left));
  v1::Pool::Stub& stub = state_->StubFor(control_address);
  {
    absl::MutexLock lock(&state_->mutex);
    state_->calls.insert(call);
    ++state_->contexts;
  }
  stub.async()->OpenSession(
      &call->context, &call->request, &call->reply,
      [state = state_, call](grpc::Status status) { state->End(call, status); });
}

}  // namespace forebay

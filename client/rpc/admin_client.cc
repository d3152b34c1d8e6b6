#include "client/rpc/admin_client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/forebay/v1/admin.grpc.pb.h"
#include "proto/grpc_status.h"

namespace forebay {
namespace {

using AdminStub = v1::Admin::Stub;

// One call on a channel of its own: an operator's question, not a hot path.
template <typename Request, typename Reply>
absl::StatusOr<Reply> Call(const std::string& address, const std::string& token, Nanos deadline,
                           grpc::Status (AdminStub::*method)(grpc::ClientContext*, const Request&,
                                                             Reply*)) {
  grpc::ChannelArguments arguments;
  // As for workers: a proxy of the environment has no business between a tool and its daemon.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel =
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  const std::unique_ptr<AdminStub> stub = v1::Admin::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(deadline));
  if (!token.empty()) context.AddMetadata("forebay-token", token);
  Reply reply;
  const absl::Status status = FromGrpcStatus((stub.get()->*method)(&context, Request(), &reply));
  if (status.ok()) return reply;
  return absl::Status(status.code(),
                      absl::StrCat("the daemon at ", address, ": ", status.message()));
}

}  // namespace

absl::StatusOr<v1::StatusReply> AdminClient::Status() const {
  return Call<v1::StatusRequest, v1::StatusReply>(address_, token_, deadline_, &AdminStub::Status);
}

absl::StatusOr<v1::ListNamespacesReply> AdminClient::ListNamespaces() const {
  return Call<v1::ListNamespacesRequest, v1::ListNamespacesReply>(address_, token_, deadline_,
                                                                  &AdminStub::ListNamespaces);
}

absl::StatusOr<std::string> AdminClient::Metrics() const {
  FB_ASSIGN_OR_RETURN(const v1::MetricsReply reply,
                      (Call<v1::MetricsRequest, v1::MetricsReply>(address_, token_, deadline_,
                                                                  &AdminStub::Metrics)));
  return reply.text();
}

absl::StatusOr<std::string> AdminClient::ShowConfig() const {
  FB_ASSIGN_OR_RETURN(const v1::ShowConfigReply reply,
                      (Call<v1::ShowConfigRequest, v1::ShowConfigReply>(address_, token_, deadline_,
                                                                        &AdminStub::ShowConfig)));
  return reply.textproto();
}

}  // namespace forebay

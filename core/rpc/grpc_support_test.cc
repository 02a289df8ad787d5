#include "core/rpc/grpc_support.h"

#include <grpc/grpc.h>
#include <grpcpp/support/status.h>

#include "core/base/status.h"
#include "core/rpc/channel.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

TEST(StatusConversionTest, EveryCodeGoesThereAndBack) {
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
}

TEST(StatusConversionTest, LongMessagesAreCut) {
  const absl::Status back = FromGrpc(ToGrpc(absl::InternalError(std::string(100000, 'x'))));
  EXPECT_EQ(back.code(), absl::StatusCode::kInternal);
  EXPECT_LE(back.message().size(), 4096U);
}

TEST(StartGrpcTest, NobodyWaitsForGrpcWithTheLastChannel) {
  Channel::Create("127.0.0.1:1", Token::Generate(), Role::kServer);
  EXPECT_TRUE(grpc_is_initialized());
}

}  // namespace
}  // namespace shoal::rpc

// What encryption costs, beside plain text and in turn with it: a control call over gRPC with TLS,
// and a step whose weights and gradients travel over tcp in sealed records. Bars: 25 us more, and
// 1.10 times the step.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/on_demand/train_run.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/threads/lock_order.h"
#include "core/rpc/certificates/certificate_folder.h"
#include "core/rpc/channel.h"
#include "core/rpc/server.h"
#include "core/rpc/stage_service.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kCalls = 4000;
constexpr int kFirstCalls = 200;  // not counted, as the first steps are not
constexpr size_t kFirstSteps = 5;
constexpr int kSteps = 45;
constexpr double kCallBarMicroseconds = 25;
constexpr double kStepBar = 1.10;
constexpr absl::Duration kLimit = absl::Minutes(5);

double Median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class NullStage final : public rpc::StageService {
 public:
  absl::StatusOr<proto::ConnectStageReply> ConnectStage(
      const proto::ConnectStageRequest& /*request*/) override {
    return proto::ConnectStageReply();
  }
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      const proto::JoinRendezvousRequest& /*request*/) override {
    return proto::JoinRendezvousReply();
  }
};

// A server and a channel to it.
struct Pair {
  std::unique_ptr<rpc::Server> server;
  std::shared_ptr<rpc::Channel> channel;
  std::vector<double> microseconds;

  absl::Status Call() {
    const absl::Time begin = RealClock().Now();
    SHOAL_RETURN_IF_ERROR(channel->Call(&rpc::StageService::JoinRendezvous, {}).status());
    microseconds.push_back(absl::ToDoubleMicroseconds(RealClock().Now() - begin));
    return absl::OkStatus();
  }
};

absl::StatusOr<Pair> Connect(NullStage& stage, const rpc::Security& security) {
  std::vector<std::unique_ptr<rpc::Service>> services;
  services.push_back(rpc::MakeStageService(&stage));
  Pair pair;
  SHOAL_ASSIGN_OR_RETURN(pair.server,
                         rpc::Server::Start({.security = security}, std::move(services)));
  pair.channel = rpc::Channel::Create(fmt::format("127.0.0.1:{}", pair.server->port()), security,
                                      rpc::Role::kWorker);
  return pair;
}

// By how many microseconds the median call over TLS is longer, call by call in turn.
absl::StatusOr<double> MeasureCalls(const std::string& certificates) {
  const rpc::Token token = rpc::Token::Generate();
  SHOAL_ASSIGN_OR_RETURN(
      const rpc::Security tls,
      rpc::Security::Create(token, {.folder = certificates}, rpc::Role::kWorker));
  NullStage stage;
  SHOAL_ASSIGN_OR_RETURN(Pair plain, Connect(stage, token));
  SHOAL_ASSIGN_OR_RETURN(Pair encrypted, Connect(stage, tls));
  for (int i = 0; i < kFirstCalls + kCalls; ++i) {
    if (i == kFirstCalls) {
      plain.microseconds.clear();
      encrypted.microseconds.clear();
    }
    SHOAL_RETURN_IF_ERROR(plain.Call());
    SHOAL_RETURN_IF_ERROR(encrypted.Call());
  }
  const double without = Median(plain.microseconds);
  const double with = Median(encrypted.microseconds);
  fmt::print("a call: plain {:.1f} us, TLS {:.1f} us (medians of {}): {:.1f} us more\n", without,
             with, kCalls, with - without);
  return with - without;
}

// The median step of a run, with those certificates or in plain text.
absl::StatusOr<double> MeasureSteps(const TrainRunner& runner, const std::string& job,
                                    const std::string& certificates) {
  certificates.empty() ? unsetenv(rpc::kTlsVariable)
                       : setenv(rpc::kTlsVariable, certificates.c_str(), /*overwrite=*/1);
  const std::string checkpoints = runner.folder() + "/checkpoints";
  SHOAL_ASSIGN_OR_RETURN(
      const std::string output,
      runner.Run(
          {"train", job, "--json", "--steps", std::to_string(kSteps), "--overwrite", "--set",
           "service.transports=[tcp]", "--set", "cluster={local: {servers: 2, workers: 2}}",
           "--set", "checkpoint={directory: " + checkpoints + ", export_huggingface: false}"},
          kLimit));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<MeasuredStep> steps, ParseSteps(output, kSteps));
  std::vector<double> seconds;
  for (size_t i = kFirstSteps; i < steps.size(); ++i) {
    seconds.push_back(steps[i].seconds);
  }
  return Median(seconds);
}

absl::Status Measure(const std::string& job, int rounds) {
  const std::string folder = (fs::temp_directory_path() / ("bench-tls-" + SecureToken())).string();
  fs::create_directories(folder);
  const std::string certificates = folder + "/certificates";
  const absl::Time now = WallTime();
  const rpc::Validity today = {now - absl::Hours(1), now + absl::Hours(24)};
  SHOAL_RETURN_IF_ERROR(
      rpc::MakeCertificateFolder({.folder = certificates, .ca = today, .roles = today}));
  std::vector<double> more;
  for (int round = 0; round < rounds; ++round) {
    SHOAL_ASSIGN_OR_RETURN(more.emplace_back(), MeasureCalls(certificates));
  }
  fmt::print("a call: {:.1f} us more (median of {} rounds), the bar is {:.0f}\n", Median(more),
             rounds, kCallBarMicroseconds);
  const TrainRunner runner(SHOAL_BIN_DIRECTORY "/shoal", folder);
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    SHOAL_ASSIGN_OR_RETURN(const double plain, MeasureSteps(runner, job, ""));
    SHOAL_ASSIGN_OR_RETURN(const double encrypted, MeasureSteps(runner, job, certificates));
    ratios.push_back(encrypted / plain);
    fmt::print("a step over tcp, 2 servers, 2 workers: plain {:.2f} ms, TLS {:.2f} ms: {:.3f}\n",
               plain * 1e3, encrypted * 1e3, ratios.back());
  }
  fmt::print("a step: {:.3f} of plain (median of {} rounds), the bar is {:.2f}\n", Median(ratios),
             rounds, kStepBar);
  fs::remove_all(folder);
  return absl::OkStatus();
}

}  // namespace
}  // namespace shoal::bench

// bench_tls JOB.yaml [ROUNDS]
int main(int argc, char** argv) {
  shoal::StopCheckingLockOrder();  // as the programs do
  shoal::InitLogging({.role = "bench", .level = "off"});
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 5;
  if (argc < 2 || rounds < 1) {
    fmt::print(stderr, "bench_tls JOB.yaml [ROUNDS]\n");
    return 2;
  }
  const absl::Status status = shoal::bench::Measure(argv[1], rounds);
  if (!status.ok()) {
    fmt::print(stderr, "bench_tls: {}\n", shoal::Describe(status));
    return 1;
  }
  return 0;
}

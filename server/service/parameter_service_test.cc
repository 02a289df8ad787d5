#include "server/service/parameter_service.h"

#include <cstring>
#include <filesystem>

#include "absl/time/clock.h"
#include "core/base/memory/host_memory.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/transport/push_header.h"
#include "core/transport/registry/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/client.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

class ParameterServiceTest : public testing::Test {
 protected:
  ParameterServiceTest() : folder_(testing::TempDir() + "service-" + SecureToken()) {}
  ~ParameterServiceTest() override { std::filesystem::remove_all(folder_); }

  TestingClient Client(TestingCluster& cluster, int server, uint64_t worker) {
    return {&cluster.service(server), &cluster.client_transport(), worker,
            cluster.shard_map().generation};
  }

  // Returns a push of worker `worker` with TestingCluster::Gradient.
  static TestingClient::Push MakePush(const TestingCluster& cluster, uint64_t worker, int partition,
                                      int64_t sequence = 1, int64_t step = 1, int64_t attempt = 1) {
    return {.partition = partition,
            .step = step,
            .attempt = attempt,
            .sequence = sequence,
            .gradient = cluster.Gradient(worker, step, sequence, partition)};
  }

  // Every worker pushes `sequences` gradients of every partition, sequentially.
  void PushAll(TestingCluster& cluster, uint64_t workers, int64_t sequences, int64_t step,
               int64_t attempt) {
    for (int server = 0; server < cluster.servers(); ++server) {
      for (uint64_t worker = 1; worker <= workers; ++worker) {
        TestingClient client = Client(cluster, server, worker);
        ASSERT_OK(client.Connect());
        for (const int partition : plan::PartitionsOf(cluster.shard_map(), server)) {
          for (int64_t sequence = 1; sequence <= sequences; ++sequence) {
            const auto answer =
                client.SendAndWait(MakePush(cluster, worker, partition, sequence, step, attempt));
            ASSERT_TRUE(answer.has_value());
            ASSERT_EQ(answer->code, absl::StatusCode::kOk);
          }
        }
      }
    }
  }

  const std::string folder_;
};

TEST_F(ParameterServiceTest, StepsAreTheSameOnAnyNumberOfServers) {
  std::vector<uint64_t> first;
  for (const int servers : {1, 2, 3}) {
    TestingCluster cluster(folder_, servers, plan::Accumulate::kExact);
    ASSERT_OK(cluster.Configure());
    std::vector<double> norms;
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_OK(cluster.BeginAttempt(step, 1));
      PushAll(cluster, 2, 2, step, 1);
      ASSERT_OK(cluster.Prepare(step, 1).status());
      ASSERT_OK(cluster.Commit(step, 1));
    }
    const std::vector<uint64_t> checksums = cluster.Checksums();
    if (first.empty()) {
      first = checksums;
    }
    EXPECT_EQ(checksums, first) << servers << " servers";
  }
}

TEST_F(ParameterServiceTest, ConfigureIsIdempotentAndRefusesTheSameRunOtherwise) {
  TestingCluster cluster(folder_, 2, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  const auto again = cluster.service(0).Configure(cluster.ConfigureRequest(0));
  ASSERT_OK(again.status());
  EXPECT_EQ(again->version(), 0);
  EXPECT_GT(again->resident_bytes(), 0);
  EXPECT_THAT(Describe(cluster.service(0).Configure(cluster.ConfigureRequest(1)).status()),
              HasSubstr("job-1 is configured already, as server 0 of 2"));
  proto::ConfigureRequest other = cluster.ConfigureRequest(0);
  other.clear_job_id();
  EXPECT_TRUE(absl::IsInvalidArgument(cluster.service(0).Configure(other).status()));
}

TEST_F(ParameterServiceTest, CallsForAnotherJobAreRefusedByName) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ParameterService& service = cluster.service(0);
  const auto refusals = [&](const std::string& id) {
    proto::BeginAttemptRequest begin;
    begin.set_job_id(id);
    begin.set_step(1);
    begin.set_attempt(1);
    begin.set_generation(1);
    proto::PrepareRequest prepare;
    prepare.set_job_id(id);
    proto::CommitRequest commit;
    commit.set_job_id(id);
    proto::WriteCheckpointRequest checkpoint;
    checkpoint.set_job_id(id);
    proto::GetChecksumsRequest checksums;
    checksums.set_job_id(id);
    return std::vector<absl::Status>{
        service.BeginAttempt(begin).status(), service.Prepare(prepare).status(),
        service.Commit(commit).status(), service.WriteCheckpoint(checkpoint).status(),
        service.GetChecksums(checksums).status()};
  };
  for (const absl::Status& refused : refusals("job-1")) {
    EXPECT_TRUE(absl::IsNotFound(refused));
    EXPECT_THAT(std::string(Message(refused)), HasSubstr("this server is not configured"));
  }
  ASSERT_OK(cluster.Configure());
  std::vector<absl::Status> all = refusals("job-2");
  TestingClient client(&service, &cluster.client_transport(), 1, 1, "", "job-2");
  all.push_back(client.Connect());
  for (const absl::Status& refused : all) {
    EXPECT_TRUE(absl::IsNotFound(refused));
    EXPECT_EQ(Message(refused), "job-2 is not here; this server holds job-1");
  }
  EXPECT_EQ(Message(refusals("").front()),
            "a job without an id is not here; this server holds job-1");
  ASSERT_OK(cluster.BeginAttempt(1, 1));  // The refused ones began nothing.
}

// Each has its own step, weights and clients; a fenced client is fenced in both.
TEST_F(ParameterServiceTest, JobsBesideEachOtherShareNothing) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kExact);
  Metrics metrics;
  ParameterService service({.create_transport =
                                [](const std::string& name, const auto&, int64_t, auto gpu_memory) {
                                  return transport::CreateTransport(name,
                                                                    {.gpu_memory = gpu_memory});
                                },
                            .open_gpu = TestingCluster::gpus,
                            .max_jobs = 2,
                            .available_memory = AvailableMemory},
                           &metrics);
  proto::FenceClientRequest fence;
  fence.set_incarnation(7);
  int64_t runs = 0;
  const auto of = [&](const std::string& id, auto request) {
    request.set_job_id(id);
    request.set_step(1);
    request.set_attempt(1);
    return request;
  };
  for (const char* id : {"job-a", "job-b"}) {
    proto::ConfigureRequest configure = cluster.ConfigureRequest(0);
    configure.set_job_id(id);
    configure.set_run(++runs);
    ASSERT_OK(service.Configure(configure).status());
    ASSERT_OK(TestingCluster::AdmitWorkers(service, id));
    ASSERT_OK(service.FenceClient(fence).status());
  }
  const auto checksums = [&](const std::string& id) {
    proto::GetChecksumsRequest request;
    request.set_job_id(id);
    return service.GetChecksums(request)->SerializeAsString();
  };
  const std::string start = checksums("job-a");
  EXPECT_EQ(checksums("job-b"), start);
  runs = 0;
  for (const char* id : {"job-a", "job-b"}) {
    auto begin = of(id, proto::BeginAttemptRequest());
    begin.set_run(++runs);
    begin.set_generation(cluster.shard_map().generation);
    ASSERT_OK(service.BeginAttempt(begin).status());
    begin.set_run(runs - 1);
    EXPECT_THAT(Describe(service.BeginAttempt(begin).status()),
                HasSubstr("BeginAttempt is of run"));
    TestingClient fenced(&service, &cluster.client_transport(), 7, 1, "", id);
    EXPECT_TRUE(absl::IsPermissionDenied(fenced.Connect()));
  }
  TestingClient client(&service, &cluster.client_transport(), 1, 1, "", "job-a");
  ASSERT_OK(client.Connect());
  EXPECT_EQ(client.SendAndWait(MakePush(cluster, 1, 0)), (TestingClient::Answer{}));
  EXPECT_EQ(service.Prepare(of("job-a", proto::PrepareRequest()))->pushes(0), 1);
  EXPECT_EQ(service.Prepare(of("job-b", proto::PrepareRequest()))->pushes(0), 0);
  auto commit = of("job-a", proto::CommitRequest());
  commit.set_learning_rate(1e-3);
  commit.set_clip_coefficient(1);
  ASSERT_OK(service.Commit(commit).status());
  EXPECT_NE(checksums("job-a"), start);
  EXPECT_EQ(checksums("job-b"), start);
}

TEST_F(ParameterServiceTest, ConfigureRefusesWhatCannotBe) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  proto::ConfigureRequest request = cluster.ConfigureRequest(0);
  request.mutable_shard_map()->mutable_servers()->RemoveLast();
  EXPECT_THAT(Describe(cluster.service(0).Configure(request).status()),
              HasSubstr("service.partition_bytes"));
  request = cluster.ConfigureRequest(0);
  request.mutable_shard_map()->set_servers(0, 7);
  EXPECT_THAT(Describe(cluster.service(0).Configure(request).status()), HasSubstr("partition 0"));
  request = cluster.ConfigureRequest(0);
  request.set_server_index(1);
  EXPECT_FALSE(cluster.service(0).Configure(request).ok());
  request.mutable_job()->clear_model();
  EXPECT_FALSE(cluster.service(0).Configure(request).ok());
  // None of these made it unusable.
  ASSERT_OK(cluster.Configure());
}

TEST_F(ParameterServiceTest, TooLittleMemoryIsSaidBeforeAllocating) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  Metrics metrics;
  ParameterService service(
      {.create_transport = [](const std::string&, const auto&, int64_t, const auto&)
           -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
         ADD_FAILURE() << "allocated";
         return Internal("not to be called");
       },
       .open_gpu = TestingCluster::gpus,
       .available_memory = [] { return absl::StatusOr<int64_t>(1000); }},
      &metrics);
  const absl::Status status = service.Configure(cluster.ConfigureRequest(0)).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(Describe(status), HasSubstr("1000 B available"));
}

// The job's request is wrong; no server is lost.
TEST_F(ParameterServiceTest, AJobWithoutATransportThatIsThereIsRefusedWithWhatToDo) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  Metrics metrics;
  ParameterService service(
      {.create_transport = [](const std::string&, const auto&, int64_t, const auto&)
           -> absl::StatusOr<std::unique_ptr<transport::Transport>> {
         return Unavailable("no RDMA device");
       },
       .open_gpu = TestingCluster::gpus,
       .available_memory = [] { return absl::StatusOr<int64_t>(int64_t{1} << 40); }},
      &metrics);
  const absl::Status status = service.Configure(cluster.ConfigureRequest(0)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(Describe(status), HasSubstr(": no RDMA device; name others in service.transports"));
}

TEST_F(ParameterServiceTest, ClientsReadThePublishedVersionAndNoOther) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  TestingClient client = Client(cluster, 0, 1);
  ASSERT_OK(client.Connect());
  const plan::PartitionSpec& spec = cluster.partitions()[0];
  const int64_t bytes = spec.count * 4;
  const auto before = client.Read(0, 0, bytes);
  ASSERT_OK(before.status());
  EXPECT_TRUE(absl::IsAborted(client.Read(0, 1, bytes).status()));
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  PushAll(cluster, 1, 1, 1, 1);
  ASSERT_OK(client.Connect());
  ASSERT_OK(cluster.Prepare(1, 1).status());
  ASSERT_OK(cluster.Commit(1, 1));
  const auto after = client.Read(0, 1, bytes);
  ASSERT_OK(after.status());
  EXPECT_NE(*before, *after);
  EXPECT_EQ(*client.Read(0, 0, bytes), *before);  // Kept through step 2.
  EXPECT_TRUE(absl::IsAborted(client.Read(0, 2, bytes).status()));

  TestingClient reader = Client(cluster, 0, 9);
  ASSERT_OK(reader.Connect(/*read_only=*/true));
  EXPECT_EQ(reader.granted().slots_region(), -1);
  EXPECT_EQ(*reader.Read(0, 1, bytes), *after);
}

TEST_F(ParameterServiceTest, PushesAreCountedOncePerClientAndReported) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster, 0, 5);
  ASSERT_OK(client.Connect());
  const TestingClient::Push push = MakePush(cluster, 5, 0);
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{}));
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{.applied_before = true}));
  ASSERT_OK(client.Connect());  // Also across a reconnect.
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{.applied_before = true}));
  auto request = OfTestingJob<proto::PrepareRequest>();
  request.set_step(1);
  request.set_attempt(1);
  const auto reply = cluster.service(0).Prepare(request);
  ASSERT_OK(reply.status());
  EXPECT_EQ(reply->pushes(0), 1);
  EXPECT_EQ(reply->pushes(1), 0);
  // Sealed: the same push is still recognised, a new one is refused; a repeated Prepare gets the
  // same answer.
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{.applied_before = true}));
  EXPECT_EQ(client.SendAndWait(MakePush(cluster, 5, 0, 2))->code,
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster.service(0).Prepare(request)->SerializeAsString(), reply->SerializeAsString());
}

TEST_F(ParameterServiceTest, RefusesPushesByNameAndStaysUnchanged) {
  TestingCluster cluster(folder_, 2, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  ASSERT_OK(cluster.BeginAttempt(1, 2));
  TestingClient client = Client(cluster, 0, 3);
  ASSERT_OK(client.Connect());
  const int mine = plan::PartitionsOf(cluster.shard_map(), 0).front();
  const int other = plan::PartitionsOf(cluster.shard_map(), 1).front();
  const auto code = [&](auto change) {
    TestingClient::Push push = MakePush(cluster, 3, mine, 1, 1, 2);
    transport::PushHeader header = client.Header(push);
    change(header);
    transport::SealPushHeader(header);
    client.Write(0, header, push.gradient, true);
    return client.WaitFor(0, header.push_id)
        .value_or(TestingClient::Answer{.code = absl::StatusCode::kUnknown})
        .code;
  };
  using absl::StatusCode;
  EXPECT_EQ(code([](auto& h) { h.attempt = 1; }), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](auto& h) { h.step = 2; }), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](auto& h) { h.generation = 2; }), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code([](auto& h) { h.incarnation = 4; }), StatusCode::kPermissionDenied);
  EXPECT_EQ(code([&](auto& h) { h.partition = other; }), StatusCode::kNotFound);
  EXPECT_EQ(code([](auto& h) { h.partition = -1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.partition = 1 << 20; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.dtype = 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.flags = 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.reserved[8] = 1; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.count -= 16; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.count = int64_t{1} << 60; }), StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](auto& h) { h.key = 0; }), StatusCode::kInvalidArgument);
  const auto gradients = cluster.Prepare(1, 2);
  ASSERT_OK(gradients.status());
  EXPECT_THAT(gradients->sums_of_squares(), testing::Each(0));
}

TEST_F(ParameterServiceTest, AFencedClientIsOut) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster, 0, 3);
  ASSERT_OK(client.Connect());
  EXPECT_EQ(client.SendAndWait(MakePush(cluster, 3, 0)), (TestingClient::Answer{}));
  proto::FenceClientRequest request;
  request.set_incarnation(3);
  ASSERT_OK(cluster.service(0).FenceClient(request).status());
  ASSERT_OK(cluster.service(0).FenceClient(request).status());
  EXPECT_EQ(client.SendAndWait(MakePush(cluster, 3, 0, 2)), std::nullopt);
  EXPECT_TRUE(client.closed());
  EXPECT_TRUE(absl::IsPermissionDenied(client.Connect()));
  // What it pushed until then stays in the sum, for who does the rest of it.
  auto prepare = OfTestingJob<proto::PrepareRequest>();
  prepare.set_step(1);
  prepare.set_attempt(1);
  EXPECT_EQ(cluster.service(0).Prepare(prepare)->pushes(0), 1);
}

TEST_F(ParameterServiceTest, ALostDoorbellDelaysAPushAndLosesNothing) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster, 0, 3);
  ASSERT_OK(client.Connect());
  TestingClient::Push push = MakePush(cluster, 3, 0);
  push.ring = false;
  EXPECT_EQ(client.SendAndWait(push), (TestingClient::Answer{}));
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_pushes_without_doorbell_total 1"));
  // Without a doorbell, a header whose payload may be incomplete (wrong hash) is not taken.
  transport::PushHeader header = client.Header(MakePush(cluster, 3, 0, 2));
  header.header_hash ^= 1;
  client.Write(1, header, {}, /*ring=*/false);
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(client.Poll(1, header.push_id), std::nullopt);
}

// A dropped attempt leaves no trace; commands come late or twice.
TEST_F(ParameterServiceTest, AbortedAttemptsLeaveNoTrace) {
  TestingCluster clean(folder_, 2, plan::Accumulate::kExact);
  TestingCluster cluster(folder_, 2, plan::Accumulate::kExact);
  ASSERT_OK(clean.Configure());
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(clean.BeginAttempt(1, 1));
  PushAll(clean, 1, 1, 1, 1);
  ASSERT_OK(clean.Prepare(1, 1).status());
  ASSERT_OK(clean.Commit(1, 1));

  ASSERT_OK(cluster.BeginAttempt(1, 1));
  PushAll(cluster, 2, 2, 1, 1);
  ASSERT_OK(cluster.BeginAttempt(1, 2));
  PushAll(cluster, 3, 1, 1, 2);
  ASSERT_OK(cluster.Prepare(1, 2).status());
  ASSERT_OK(cluster.BeginAttempt(1, 3));  // Sealed, and dropped as well.
  EXPECT_FALSE(cluster.Commit(1, 2).ok());
  PushAll(cluster, 1, 1, 1, 3);
  ASSERT_OK(cluster.BeginAttempt(1, 3));  // Repeated: clears nothing.
  ASSERT_OK(cluster.Prepare(1, 3).status());
  ASSERT_OK(cluster.Commit(1, 3));
  ASSERT_OK(cluster.Commit(1, 3));
  EXPECT_EQ(cluster.Checksums(), clean.Checksums());
}

// Random bytes in slots: nothing crashes, nothing is applied, and the client can continue.
TEST_F(ParameterServiceTest, GarbageInSlotsChangesNothing) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  TestingClient client = Client(cluster, 0, 3);
  ASSERT_OK(client.Connect());
  Random random(17);
  for (int round = 0; round < 300; ++round) {
    const auto slot =
        static_cast<int64_t>(random.Below(static_cast<uint64_t>(client.granted().slots())));
    // Of a step that is not open: two that overlap while the server reads may make a valid one.
    transport::PushHeader header = client.Header(MakePush(cluster, 3, 0, 1, /*step=*/77));
    std::string bytes(sizeof(header), '\0');
    if (round % 2 == 0) {
      for (char& byte : bytes) {
        byte = static_cast<char>(random.Next());
      }
      std::memcpy(bytes.data(), &transport::kPushMagic, round % 4 == 0 ? 8 : 0);
    } else {
      // A valid header with some bits flipped.
      std::memcpy(bytes.data(), &header, sizeof(header));
      for (uint64_t flips = 1 + random.Below(4); flips > 0; --flips) {
        bytes[random.Below(transport::kPushHeaderHashedBytes)] ^=
            static_cast<char>(1u << random.Below(8));
      }
      if (round % 3 == 0) {
        // A valid hash, so that every field is checked.
        std::memcpy(&header, bytes.data(), sizeof(header));
        header.step = 77;
        transport::SealPushHeader(header);
        std::memcpy(bytes.data(), &header, sizeof(header));
      }
    }
    client.WriteBytes(slot, bytes, round % 5 != 0);
    client.Ring(static_cast<uint32_t>(random.Next()));
  }
  EXPECT_EQ(client.SendAndWait(MakePush(cluster, 3, 0)), (TestingClient::Answer{}));
  auto request = OfTestingJob<proto::PrepareRequest>();
  request.set_step(1);
  request.set_attempt(1);
  const auto reply = cluster.service(0).Prepare(request);
  ASSERT_OK(reply.status());
  EXPECT_EQ(reply->pushes(0), 1);
  for (int i = 1; i < reply->partitions_size(); ++i) {
    EXPECT_EQ(reply->sums_of_squares(i), 0);
  }
}

TEST_F(ParameterServiceTest, ConnectRefusesByName) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  TestingClient early = Client(cluster, 0, 1);
  EXPECT_TRUE(absl::IsUnavailable(early.Connect()));
  ASSERT_OK(cluster.Configure());
  TestingClient stale(&cluster.service(0), &cluster.client_transport(), 1, 99);
  EXPECT_THAT(Describe(stale.Connect()), HasSubstr("generation 99"));
  auto request = OfTestingJob<proto::ConnectRequest>();
  request.set_incarnation(1);
  request.set_client("worker-1");
  request.set_generation(1);
  request.set_layout_version(99);
  EXPECT_THAT(Describe(cluster.service(0).Connect(request).status()), HasSubstr("data layout 99"));
  request.set_layout_version(transport::kDataLayoutVersion);
  proto::TransportOffer& offer = *request.add_offers();
  offer.set_transport("tcp");
  EXPECT_THAT(Describe(cluster.service(0).Connect(request).status()),
              HasSubstr("shm: not offered by worker-1"));
  offer.set_transport("shm");
  offer.set_offer("garbage");
  EXPECT_FALSE(cluster.service(0).Connect(request).ok());
}

// Clients come, leave pushes half done, and go; the server keeps nothing.
TEST_F(ParameterServiceTest, ClientsThatGoLeaveNothingBehind) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_OK(cluster.Configure());
  ASSERT_OK(cluster.BeginAttempt(1, 1));
  for (uint64_t worker = 1; worker <= 30; ++worker) {
    TestingClient client = Client(cluster, 0, worker);
    ASSERT_OK(client.Connect());
    client.Send(0, MakePush(cluster, worker, 0));
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(5);
  while (cluster.MetricsText(0).find("shoal_ps_clients 0\n") == std::string::npos &&
         absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_THAT(cluster.MetricsText(0), HasSubstr("shoal_ps_clients 0\n"));
}

}  // namespace
}  // namespace shoal::server

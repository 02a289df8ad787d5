// What only etcd's store does: one leads, and who leads no more writes no more.
#include "server/coordinator/state/etcd_state_store.h"

#include <signal.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "core/base/clock.h"
#include "core/base/process/subprocess.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/etcd_writer.h"
#include "server/coordinator/state/testing/etcd_process.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(30);

TEST(EtcdUrl, NamesEndpointsAndCluster) {
  const auto one = *ParseEtcdUrl("etcd://a:2379,[::1]:2380/my-cluster");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->endpoints, "a:2379,[::1]:2380");
  EXPECT_EQ(one->name, "my-cluster");
  EXPECT_FALSE((*ParseEtcdUrl("folder/coordinator.db")).has_value());
  for (const char* bad : {"etcd://a:2379", "etcd://a:2379/", "etcd:///name", "etcd://a/name",
                          "etcd://a:0/name", "etcd://a:2379,/name", "etcd://a:70000/name",
                          "etcd://a:2379/na/me", "http://a:2379/name"}) {
    const absl::Status refused = ParseEtcdUrl(bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << bad;
    EXPECT_THAT(std::string(Message(refused)), HasSubstr(bad));
  }
}

TEST(EtcdTransaction, TakesWhatEtcdTakesTogether) {
  EtcdChange all;
  EXPECT_TRUE(AddToTransaction({EtcdPut("a", "1"), EtcdPut("b", "1")}, all));
  EXPECT_TRUE(AddToTransaction({EtcdPut("a", "2")}, all));
  ASSERT_EQ(all.size(), 2U) << "a key is put once";
  EXPECT_EQ(all[1].request_put().value(), "2");
  EXPECT_FALSE(AddToTransaction({EtcdDelete("b")}, all));
  EXPECT_TRUE(AddToTransaction({EtcdDeleteRange("c", "d")}, all));
  EXPECT_FALSE(AddToTransaction({EtcdPut("c1", "1")}, all));
  EXPECT_TRUE(AddToTransaction({EtcdPut("d", "1")}, all)) << "the end is not of the range";
  EXPECT_FALSE(AddToTransaction({EtcdPut("e", std::string(1 << 20, 'x'))}, all));
  EXPECT_FALSE(AddToTransaction(EtcdChange(120, EtcdDelete("z")), all));
}

class EtcdStore : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::EtcdProcess::Exists()) {
      GTEST_SKIP() << "no etcd here: scripts/install-dependencies.sh --tests";
    }
    const absl::Status started = etcd_.Start();
    ASSERT_TRUE(started.ok()) << started;
  }
  EtcdOptions Options(const std::string& address) {
    return {.at = {etcd_.endpoint(), "test"},
            .address = address,
            .lease = absl::Seconds(2),
            .lost = [this](const absl::Status& why) {
              absl::MutexLock lock(&mutex_);
              lost_.emplace_back(Message(why));
            }};
  }
  std::vector<std::string> lost() {
    absl::MutexLock lock(&mutex_);
    return lost_;
  }
  // Asks once a moment until it leads.
  static std::unique_ptr<StateStore> Lead(EtcdCandidate& candidate) {
    const absl::Time deadline = RealClock().Now() + kLimit;
    while (RealClock().Now() < deadline) {
      auto led = candidate.Try();
      if (led.ok() && *led != nullptr) {
        return *std::move(led);
      }
      RealClock().SleepFor(absl::Milliseconds(50));
    }
    return nullptr;
  }
  // The leader's lease ends, as of one that stands still.
  void EndTheLease() const {
    EtcdLease::Revoke(*etcd_.Connect(), etcd_.Get("/shoal/test/leader")->lease());
  }

  const TemporaryFolder folder_;
  testing::EtcdProcess etcd_{folder_ / "etcd"};
  absl::Mutex mutex_;
  std::vector<std::string> lost_ ABSL_GUARDED_BY(mutex_);
};

TEST_F(EtcdStore, OneLeadsAndTheOtherKnowsItsAddress) {
  EtcdCandidate a(Options("a:1"));
  EtcdCandidate b(Options("b:1"));
  auto first = a.Try();
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_NE(*first, nullptr);
  EXPECT_EQ((*first)->Load()->term, 1);
  auto second = b.Try();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second, nullptr);
  EXPECT_EQ(b.leader(), "a:1");
  ASSERT_TRUE((*first)->BeginJob("job-1", "request").ok());
  RealClock().SleepFor(absl::Seconds(3));
  EXPECT_EQ(*b.Try(), nullptr) << "the lease is renewed";
  first->reset();
  second = b.Try();
  ASSERT_NE(*second, nullptr) << "who ends gives its lead back";
  EXPECT_EQ((*second)->Load()->term, 2);
  EXPECT_EQ((*second)->Load()->jobs.at(0).id, "job-1");
  EXPECT_TRUE(lost().empty());
}

TEST_F(EtcdStore, ManyCandidatesHaveOneLeader) {
  std::atomic<int> leaders = 0;
  std::vector<std::unique_ptr<StateStore>> stores(8);
  std::vector<std::thread> threads;
  for (auto& store : stores) {
    threads.emplace_back([&] {
      EtcdCandidate candidate(Options("x:1"));
      for (int i = 0; i < 5 && store == nullptr; ++i) {
        auto led = candidate.Try();
        store = led.ok() ? *std::move(led) : nullptr;
      }
      leaders += store != nullptr ? 1 : 0;
    });
  }
  std::ranges::for_each(threads, [](std::thread& thread) { thread.join(); });
  EXPECT_EQ(leaders, 1);
}

TEST_F(EtcdStore, WhoLeadsNoMoreWritesNothing) {
  EtcdCandidate a(Options("a:1"));
  EtcdCandidate b(Options("b:1"));
  const std::unique_ptr<StateStore> old = Lead(a);
  ASSERT_TRUE(old->BeginJob("job-1", "request").ok());
  ASSERT_TRUE(old->RecordCommit("job-1", {.step = 3}).ok());
  ASSERT_EQ(old->Load()->jobs[0].last_commit->step, 3);
  EndTheLease();
  const std::unique_ptr<StateStore> next = Lead(b);
  ASSERT_NE(next, nullptr);
  ASSERT_TRUE(next->RecordCommit("job-1", {.step = 4}).ok());
  static_cast<void>(old->RecordCommit("job-1", {.step = 5}));
  EXPECT_FALSE(old->EndJob("job-1", "failed").ok());
  const SavedState state = *next->Load();
  EXPECT_EQ(state.term, 2);
  EXPECT_EQ(state.jobs[0].last_commit->step, 4);
  EXPECT_EQ(state.jobs[0].outcome, "");
  ASSERT_EQ(lost().size(), 1U) << "once";
  EXPECT_THAT(lost()[0], ::testing::AnyOf(HasSubstr("etcd refused a write of term 1: b:1 leads"),
                                          HasSubstr("its lease in etcd has ended")));
}

// The queue's compares alone: nothing renews, so nothing else notices.
TEST_F(EtcdStore, AWriteIsRefusedByItsTransaction) {
  const auto channel = etcd_.Connect();
  std::vector<std::string> why;
  EtcdLease lease(channel, *EtcdLease::Grant(*channel, absl::Seconds(60)),
                  [&why](const absl::Status& status) { why.emplace_back(Message(status)); });
  etcd_.Put("leader", "a:1");
  etcd_.Put("number", "7.0");
  const int64_t revision = etcd_.Get("leader")->create_revision();
  EtcdWriter writer(
      channel,
      {.leader_key = "leader", .leader_revision = revision, .number_key = "number", .term = "7"},
      lease);
  EXPECT_TRUE(writer.Write({EtcdPut("key", "1")}).ok());
  etcd_.Put("number", "7.2");
  EXPECT_TRUE(writer.Write({EtcdPut("key", "lost")}).ok()) << "done before, and its answer lost";
  EXPECT_EQ(etcd_.Get("key")->value(), "1") << "and not done again";
  etcd_.Delete("leader");
  etcd_.Put("leader", "b:1");
  EXPECT_TRUE(absl::IsAborted(writer.Write({EtcdPut("key", "2")})));
  EXPECT_FALSE(writer.WriteLater({EtcdPut("key", "3")}).ok());
  EXPECT_EQ(etcd_.Get("key")->value(), "1");
  EXPECT_THAT(why, ::testing::ElementsAre("etcd refused a write of term 7: b:1 leads"));
}

TEST_F(EtcdStore, AShortBreakCostsNothingALongOneTheLead) {
  EtcdOptions options = Options("a:1");
  options.lease = absl::Seconds(6);
  EtcdCandidate a(options);
  std::unique_ptr<StateStore> store = Lead(a);
  ASSERT_TRUE(store->BeginJob("job-1", "request").ok());
  etcd_.Kill();
  const absl::Time broken = RealClock().Now();
  for (int step = 1; step <= 500; ++step) {
    ASSERT_TRUE(store->RecordCommit("job-1", {.step = step}).ok());
  }
  EXPECT_LT(RealClock().Now() - broken, absl::Milliseconds(500)) << "nothing waits for etcd";
  const absl::Status again = etcd_.Start();
  ASSERT_TRUE(again.ok()) << again;
  const absl::StatusOr<SavedState> state = store->Load();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->jobs[0].last_commit->step, 500);
  EXPECT_TRUE(lost().empty());
  etcd_.Kill();
  const absl::Status ended = store->EndJob("job-1", "done");
  EXPECT_TRUE(absl::IsAborted(ended)) << ended;
  const absl::Time deadline = RealClock().Now() + kLimit;
  while (lost().empty() && RealClock().Now() < deadline) {
    RealClock().SleepFor(absl::Milliseconds(20));
  }
  ASSERT_EQ(lost().size(), 1U);
  EXPECT_THAT(lost()[0], HasSubstr("could not be renewed (etcd at " + etcd_.endpoint()));
}

// Else a job is told to have failed that the next leader goes on with.
TEST_F(EtcdStore, NoCallFailsBeforeTheLossIsTold) {
  EtcdOptions options = Options("a:1");
  options.lost = [this, tell = options.lost](const absl::Status& why) {
    RealClock().SleepFor(absl::Milliseconds(500));
    tell(why);
  };
  EtcdCandidate a(options);
  const std::unique_ptr<StateStore> store = Lead(a);
  ASSERT_TRUE(store->BeginJob("job-1", "request").ok());
  etcd_.Kill();
  const absl::Time deadline = RealClock().Now() + kLimit;
  absl::Status recorded;
  while (recorded.ok() && RealClock().Now() < deadline) {
    recorded = store->RecordCommit("job-1", {.step = 1});
    RealClock().SleepFor(absl::Milliseconds(5));
  }
  EXPECT_TRUE(absl::IsAborted(recorded)) << recorded;
  EXPECT_EQ(lost().size(), 1U);
}

TEST_F(EtcdStore, WhatIsTooLargeIsRefusedByItsLimit) {
  EtcdCandidate a(Options("a:1"));
  const std::unique_ptr<StateStore> store = Lead(a);
  ASSERT_TRUE(store->BeginJob("job-1", std::string(1'400'000, 'x')).ok());
  const absl::Status refused = store->BeginJob("job-2", std::string(3'000'000, 'x'));
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("larger --max-request-bytes"));
  ASSERT_TRUE(store->StopJob("job-1", "reason").ok()) << "it goes on";
  EXPECT_EQ(store->Load()->jobs.size(), 1U);
  EXPECT_TRUE(lost().empty());
}

TEST_F(EtcdStore, AFullEtcdEndsTheLeadByName) {
  etcd_.Kill();
  ASSERT_TRUE(etcd_.Start({"--quota-backend-bytes", "2000000"}).ok());
  EtcdCandidate a(Options("a:1"));
  const std::unique_ptr<StateStore> store = Lead(a);
  ASSERT_NE(store, nullptr);
  absl::Status full;
  for (int i = 0; i < 20 && full.ok(); ++i) {
    full = store->BeginJob(fmt::format("job-{}", i), std::string(1'000'000, 'x'));
  }
  EXPECT_THAT(std::string(Message(full)), HasSubstr("etcdctl alarm disarm"));
  EXPECT_EQ(lost().size(), 1U);
  EtcdOptions options = Options("b:1");
  options.at.name = "other";
  const absl::Status refused = EtcdCandidate(options).Try().status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(Message(refused)), HasSubstr("etcdctl alarm disarm"));
}

TEST_F(EtcdStore, WhereNothingListensItsAddressIsNamed) {
  EtcdOptions options = Options("a:1");
  options.at.endpoints = "127.0.0.1:1";
  const absl::Status status = EtcdCandidate(options).Try().status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("etcd at 127.0.0.1:1: "));
}

TEST_F(EtcdStore, TheNextEndpointIsAskedWhereOneIsGone) {
  EtcdOptions options = Options("a:1");
  options.at.endpoints = "127.0.0.1:1," + etcd_.endpoint();
  EtcdCandidate a(options);
  const std::unique_ptr<StateStore> store = Lead(a);
  ASSERT_NE(store, nullptr);
  EXPECT_TRUE(store->BeginJob("job-1", "request").ok());
}

// A certificate that is its own CA, for any side, of the host 127.0.0.1.
void MakeCertificate(const TemporaryFolder& folder) {
  const auto made =
      RunCommand({.name = "openssl",
                  .arguments = {"openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                                "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=etcd", "-addext",
                                "subjectAltName=IP:127.0.0.1", "-keyout", folder / "tls.key",
                                "-out", folder / "tls.crt"}},
                 kLimit);
  ASSERT_TRUE(made.ok()) << made.status();
  std::filesystem::copy_file(folder / "tls.crt", folder / "ca.crt");
}

class EtcdTls : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!testing::EtcdProcess::Exists() || !ProgramExists("openssl")) {
      GTEST_SKIP() << "no etcd or no openssl here: scripts/install-dependencies.sh --tests";
    }
  }
  EtcdCandidate Candidate(const testing::EtcdProcess& etcd, const rpc::Security& security) {
    return EtcdCandidate({.at = {etcd.endpoint(), "test"}, .security = security, .address = "a:1"});
  }
  const TemporaryFolder folder_;
  const TemporaryFolder certificates_;
};

TEST_F(EtcdTls, StateIsWrittenOverConnectionsThatBothSidesTrust) {
  MakeCertificate(certificates_);
  testing::EtcdProcess etcd(folder_ / "etcd", certificates_.path());
  const absl::Status started = etcd.Start();
  ASSERT_TRUE(started.ok()) << started;
  auto store = Candidate(etcd, etcd.security()).Try();
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_NE(*store, nullptr);
  EXPECT_TRUE((*store)->BeginJob("job-1", "request").ok());
  EXPECT_EQ((*store)->Load()->jobs.size(), 1U);
  EXPECT_TRUE(absl::IsUnavailable(Candidate(etcd, {}).Try().status())) << "plain text";
  const TemporaryFolder others;
  MakeCertificate(others);
  EXPECT_TRUE(
      absl::IsUnavailable(Candidate(etcd, *rpc::Security::ForOthers(others.path())).Try().status()))
      << "another CA's";
  EXPECT_THAT(
      std::string(Message(
          EtcdCandidate(
              {.at = {"localhost" + etcd.endpoint().substr(etcd.endpoint().find(':')), "test"},
               .security = etcd.security()})
              .Try()
              .status())),
      HasSubstr("it is not who it should be"));
}

TEST(EtcdTlsFiles, AMissingFileIsNamed) {
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Message(rpc::Security::ForOthers(folder.path()).status())),
              HasSubstr(folder / "ca.crt"));
}

}  // namespace
}  // namespace shoal::server

// Mutual TLS from end to end: who may call what, and who is refused, over real servers.
#include "core/rpc/security.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <map>
#include <set>
#include <sstream>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/local_name.h"
#include "core/base/testing/status.h"
#include "core/rpc/certificates/certificate_folder.h"
#include "core/rpc/channel.h"
#include "core/rpc/server.h"
#include "core/rpc/testing/any_services.h"
#include "core/rpc/testing/reloaded.h"

namespace shoal::rpc {
namespace {

using ::testing::HasSubstr;
using ::testing::NiceMock;

class SecurityTest : public ::testing::Test {
 protected:
  // Certificates of all roles, by a CA that is new unless one is given.
  std::string MakeCertificates(const std::string& name, const std::string& name_space = "demo",
                               const std::string& ca_from = "") const {
    const CertificateFolderOptions options = {.folder = folder_ / name,
                                              .ca_from = ca_from,
                                              .name_space = name_space,
                                              .ca = good_,
                                              .roles = good_};
    const absl::Status made = MakeCertificateFolder(options);
    EXPECT_TRUE(made.ok()) << made;
    return options.folder;
  }
  Security Of(Role role, const std::string& certificates, Metrics* metrics = nullptr) const {
    auto security = Security::Create(token_, {.folder = certificates, .reload = absl::Seconds(1)},
                                     role, metrics);
    EXPECT_TRUE(security.ok()) << security.status();
    return *security;
  }
  Security Of(Role role) const { return Of(role, certificates_); }
  std::unique_ptr<Server> Serve(std::unique_ptr<Service> service, const Security& security) const {
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(std::move(service));
    auto server = Server::Start({.security = security}, std::move(services));
    EXPECT_TRUE(server.ok()) << server.status();
    return *std::move(server);
  }
  std::unique_ptr<Server> ServeCoordinator(const Security& security) {
    return Serve(MakeCoordinatorService(&coordinator_), security);
  }
  static std::string AddressOf(const Server& server) {
    return fmt::format("127.0.0.1:{}", server.port());
  }
  // A call that reaches the coordinator is answered Unknown.
  static absl::Status Ask(const Server& server, const Security& caller) {
    return Channel::Create(AddressOf(server), caller, Role::kCoordinator)
        ->Call(&CoordinatorService::GetStatus, {})
        .status();
  }

  TemporaryFolder folder_;
  const Token token_ = Token::Generate();
  const absl::Time now_ = WallTime();
  const Validity good_ = {now_ - absl::Hours(1), now_ + absl::Hours(24)};
  const std::string certificates_ = MakeCertificates("certificates");
  NiceMock<AnyCoordinator> coordinator_;
  NiceMock<AnyServer> server_;
  NiceMock<AnyStage> stage_;
};

// The callers of each method, as docs/security.md says.
std::map<std::string, std::set<std::string>> ReadTable() {
  std::map<std::string, std::set<std::string>> table;
  const auto page = ReadFile(std::string(SHOAL_SOURCE_DIRECTORY) + "/docs/security.md");
  EXPECT_TRUE(page.ok()) << page.status();
  std::istringstream lines(page.value_or(""));
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    section = line.starts_with("## ") ? line : section;
    const size_t cell = line.find(" | ", 1);
    if (section != "## Who may call what" || !line.starts_with("| `")) {
      continue;
    }
    std::set<std::string> callers;
    for (const Role role : kRoles) {
      if (line.find(RoleName(role), cell) != std::string::npos) {
        callers.insert(RoleName(role));
      }
    }
    std::istringstream names(line.substr(0, cell));
    for (std::string name; std::getline(names, name, '`');) {
      if (std::getline(names, name, '`')) {
        EXPECT_TRUE(table.emplace(name, callers).second) << name << " stands there twice";
      }
    }
  }
  return table;
}

// Calls a method with a request that says nothing, or only who registers.
absl::Status CallEmpty(Channel& channel, const google::protobuf::MethodDescriptor& method,
                       proto::Role registers = proto::ROLE_WORKER) {
  auto* const factory = google::protobuf::MessageFactory::generated_factory();
  const std::unique_ptr<google::protobuf::Message> request(
      factory->GetPrototype(method.input_type())->New());
  const std::unique_ptr<google::protobuf::Message> reply(
      factory->GetPrototype(method.output_type())->New());
  if (auto* registration = dynamic_cast<proto::RegisterRequest*>(request.get())) {
    registration->set_role(registers);
  }
  absl::Status answer;
  absl::Notification done;
  channel.Start(*request, *reply, {}, [&](const absl::Status& status) {
    answer = status;
    done.Notify();
  });
  done.WaitForNotification();
  return answer;
}

// Calls each method of a service, with a request that says nothing, as each role.
void CallAll(const google::protobuf::ServiceDescriptor& service, const std::string& address,
             Role callee, const std::function<Security(Role)>& of,
             std::map<std::string, std::set<std::string>>& table) {
  for (const Role caller : kRoles) {
    const auto channel = Channel::Create(address, of(caller), callee);
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service.method(i);
      ASSERT_TRUE(table.contains(method.name())) << method.name() << " is not in the table";
      const bool may = table[method.name()].contains(RoleName(caller));
      const absl::Status status = CallEmpty(
          *channel, method, caller == Role::kServer ? proto::ROLE_SERVER : proto::ROLE_WORKER);
      EXPECT_EQ(absl::IsPermissionDenied(status), !may) << RoleName(caller) << ": " << status;
      EXPECT_FALSE(absl::IsUnauthenticated(status) || absl::IsUnavailable(status)) << status;
    }
  }
}

TEST_F(SecurityTest, EveryRoleMayCallWhatTheTableSays) {
  auto table = ReadTable();
  int methods = 0;
  const auto call = [&](std::unique_ptr<Service> service, Role callee,
                        const google::protobuf::Descriptor& request) {
    const google::protobuf::ServiceDescriptor& described = *request.file()->service(0);
    const auto server = Serve(std::move(service), Of(callee));
    CallAll(
        described, AddressOf(*server), callee, [this](Role role) { return Of(role); }, table);
    methods += described.method_count();
  };
  call(MakeCoordinatorService(&coordinator_), Role::kCoordinator,
       *proto::SubmitJobRequest::descriptor());
  call(MakeParameterServerService(&server_), Role::kServer, *proto::CommitRequest::descriptor());
  call(MakeStageService(&stage_), Role::kWorker, *proto::ConnectStageRequest::descriptor());
  EXPECT_EQ(table.size(), static_cast<size_t>(methods)) << "the page names what is no method";
}

TEST_F(SecurityTest, WhoMayNotIsToldWhyAndNothingIsRun) {
  EXPECT_CALL(coordinator_, SubmitJob).Times(0);
  Metrics metrics;
  const auto server = ServeCoordinator(Of(Role::kCoordinator, certificates_, &metrics));
  const auto worker = Channel::Create(AddressOf(*server), Of(Role::kWorker), Role::kCoordinator);
  EXPECT_REFUSED(worker->Call(&CoordinatorService::SubmitJob, {}).status(),
                 "SubmitJob: by its certificate the caller is a worker, which may not call "
                 "SubmitJob");
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_rpc_refused_total{reason=\"role\"} 1"));
}

TEST_F(SecurityTest, AMemberRegistersAsWhatItsCertificateSays) {
  EXPECT_CALL(coordinator_, Register).Times(1);
  const auto server = ServeCoordinator(Of(Role::kCoordinator));
  const auto worker = Channel::Create(AddressOf(*server), Of(Role::kWorker), Role::kCoordinator);
  proto::RegisterRequest request;
  request.set_role(proto::ROLE_SERVER);
  EXPECT_REFUSED(worker->Call(&CoordinatorService::Register, request).status(),
                 "by its certificate the caller is a worker, and it registers as another");
  request.set_role(proto::ROLE_WORKER);
  EXPECT_TRUE(absl::IsUnknown(worker->Call(&CoordinatorService::Register, request).status()));
}

TEST_F(SecurityTest, TheTokenIsNeededAllTheSame) {
  Metrics metrics;
  const auto server = ServeCoordinator(Of(Role::kCoordinator, certificates_, &metrics));
  const auto other = Security::Create(Token::Generate(), {.folder = certificates_}, Role::kClient);
  EXPECT_TRUE(absl::IsUnauthenticated(Ask(*server, *other)));
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_rpc_refused_total{reason=\"token\"} 1"));
}

// Whoever has the job's token may be a member, and yet no coordinator.
TEST_F(SecurityTest, CommandsShowWhatTheServerSaidWhenItRegistered) {
  auto table = ReadTable();
  const Token commands = Token::Generate();
  const auto server =
      Serve(MakeParameterServerService(&server_), Security(token_).WithCommandToken(commands));
  const google::protobuf::ServiceDescriptor& service =
      *proto::CommitRequest::descriptor()->file()->service(0);
  for (const Token& shown : {token_, commands}) {
    const auto channel =
        Channel::Create(AddressOf(*server), Security(token_).WithToken(shown), Role::kServer);
    for (int i = 0; i < service.method_count(); ++i) {
      const google::protobuf::MethodDescriptor& method = *service.method(i);
      const bool command = table[method.name()] == std::set<std::string>{"coordinator"};
      const absl::Status status = CallEmpty(*channel, method);
      EXPECT_EQ(absl::IsUnauthenticated(status), command != (shown.secret() == commands.secret()))
          << method.name() << ": " << status;
    }
  }
  EXPECT_REFUSED(CallEmpty(*Channel::Create(AddressOf(*server), token_, Role::kServer),
                           *service.FindMethodByName("Commit")),
                 "nobody else may command it");
}

TEST_F(SecurityTest, OnlyOneWithTlsCanBeAskedForSecrets) {
  EXPECT_TRUE(Of(Role::kServer).encrypted());
  EXPECT_FALSE(Security(token_).encrypted());
  EXPECT_REFUSED(Security::Create(token_, {.folder = folder_ / "absent"}, Role::kServer).status(),
                 "absent/tls.crt");
}

TEST_F(SecurityTest, WhoListensInPlainTextBeyondThisMachineSaysSo) {
  const auto said = [&](const std::string& listen, const Security& security) {
    ::testing::internal::CaptureStdout();  // tests that did not set up logging log here
    std::vector<std::unique_ptr<Service>> services;
    services.push_back(MakeStageService(&stage_));
    const auto server =
        Server::Start({.listen = listen, .security = security}, std::move(services));
    EXPECT_TRUE(server.ok()) << server.status();
    return ::testing::internal::GetCapturedStdout();
  };
  const std::string warning = "listens on 0.0.0.0:0 in plain text";
  EXPECT_THAT(said("0.0.0.0:0", token_), HasSubstr(warning));
  EXPECT_EQ(said("0.0.0.0:0", Of(Role::kServer)), "");
  EXPECT_EQ(said("127.0.0.1:0", token_), "");
  EXPECT_EQ(said(LocalName() + ":0", token_), "");
}

TEST_F(SecurityTest, PlainTextIsNeitherTakenNorOffered) {
  EXPECT_CALL(coordinator_, GetStatus).Times(0);
  const auto encrypted = ServeCoordinator(Of(Role::kCoordinator));
  const absl::Status plain_caller = Ask(*encrypted, token_);
  EXPECT_TRUE(absl::IsUnavailable(plain_caller)) << plain_caller;
  EXPECT_REFUSED(plain_caller, "it may want TLS: --tls");
  const auto plain = ServeCoordinator(token_);
  const absl::Status plain_callee = Ask(*plain, Of(Role::kClient));
  EXPECT_TRUE(absl::IsUnavailable(plain_callee)) << plain_callee;
  EXPECT_REFUSED(plain_callee, "it does not speak TLS: was it started with --tls?");
}

TEST_F(SecurityTest, APeerThatIsNotWhoIsMeantIsNamed) {
  const Security client = Of(Role::kClient);
  // A worker that answers at the coordinator's address.
  EXPECT_REFUSED(Ask(*ServeCoordinator(Of(Role::kWorker)), client),
                 "spiffe://shoal.local/ns/demo/sa/shoal-worker is not a coordinator");
  EXPECT_REFUSED(
      Ask(*ServeCoordinator(Of(Role::kCoordinator, MakeCertificates("foreign"))), client),
      "spiffe://shoal.local/ns/demo/sa/shoal-coordinator is of a foreign CA");
  const std::string elsewhere = MakeCertificates("elsewhere", "other", certificates_);
  EXPECT_REFUSED(Ask(*ServeCoordinator(Of(Role::kCoordinator, elsewhere)), client),
                 "spiffe://shoal.local/ns/other/sa/shoal-coordinator is not of namespace demo");
}

TEST_F(SecurityTest, ACallerThatIsNotTakenIsToldWhereToLook) {
  const std::string foreign = MakeCertificates("foreign");
  const std::string file = foreign + "/client/ca.crt";
  ASSERT_OK(WriteFileAtomically(file, *ReadFile(file) + *ReadFile(certificates_ + "/ca.crt")));
  const auto server = ServeCoordinator(Of(Role::kCoordinator));
  const absl::Status refused = Ask(*server, Of(Role::kClient, foreign));
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_REFUSED(refused, "it closed the connection at once: its log says why");
}

// A client that shows whatever it is given, and takes any server.
bool Connects(const Server& server, const KeyAndCertificate& shown) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  if (!shown.certificate.empty()) {
    const std::vector<grpc::experimental::IdentityKeyCertPair> pairs = {
        {shown.key, shown.certificate}};
    options.set_certificate_provider(
        std::make_shared<grpc::experimental::StaticDataCertificateProvider>(pairs));
    options.watch_identity_key_cert_pairs();
  }
  options.set_verify_server_certs(false);
  options.set_check_call_host(false);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto channel =
      grpc::CreateCustomChannel(fmt::format("127.0.0.1:{}", server.port()),
                                grpc::experimental::TlsCredentials(options), arguments);
  channel->GetState(/*try_to_connect=*/true);
  const gpr_timespec limit =
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_seconds(10, GPR_TIMESPAN));
  while (true) {
    const grpc_connectivity_state state = channel->GetState(false);
    if (state == GRPC_CHANNEL_READY || state == GRPC_CHANNEL_TRANSIENT_FAILURE ||
        !channel->WaitForStateChange(state, limit)) {
      return state == GRPC_CHANNEL_READY;
    }
  }
}

TEST_F(SecurityTest, ACallerWithoutAGoodCertificateIsNamedInTheLog) {
  const Identity worker = {.name_space = "demo", .role = Role::kWorker};
  const auto maker = CertificateMaker::Open(
      {*ReadFile(certificates_ + "/ca.key"), *ReadFile(certificates_ + "/ca.crt")});
  const auto stranger = CertificateMaker::Create(good_);
  const auto issue = [&](const CertificateMaker& by, const Identity& who, const Validity& when) {
    return *by.Issue(who, when);
  };
  const Validity past = {now_ - absl::Hours(2), now_ - absl::Hours(1)};
  const std::vector<std::pair<KeyAndCertificate, std::string>> cases = {
      {{}, "refused: a connection: it shows no certificate"},
      {issue(**maker, worker, past), "shoal-worker has expired: it ended on "},
      {issue(**stranger, worker, good_), "shoal-worker is of a foreign CA"},
      {issue(**maker, {.name_space = "other"}, good_),
       "spiffe://shoal.local/ns/other/sa/shoal-client is not of namespace demo"},
      {issue(**maker, {.domain = "other.local", .name_space = "demo"}, good_),
       "spiffe://other.local/ns/demo/sa/shoal-client is not of domain shoal.local"}};
  for (const auto& [shown, said] : cases) {
    Metrics metrics;
    ::testing::internal::CaptureStdout();  // tests that did not set up logging log here
    const auto server = ServeCoordinator(Of(Role::kCoordinator, certificates_, &metrics));
    EXPECT_FALSE(Connects(*server, shown)) << said;
    server->Shutdown(absl::ZeroDuration());
    EXPECT_THAT(::testing::internal::GetCapturedStdout(), HasSubstr(said));
    EXPECT_THAT(metrics.Text(),
                ::testing::ContainsRegex("shoal_rpc_refused_total.reason=\"identity\". [1-9]"));
  }
  const auto server = ServeCoordinator(Of(Role::kCoordinator));
  EXPECT_TRUE(Connects(*server, issue(**maker, worker, good_)));
}

// As operators do it, in three moves: both CAs are trusted, certificates are of the new one, the
// old one is trusted no more.
TEST_F(SecurityTest, CertificatesAndTheCaAreReplacedWhileCallsGoOn) {
  const std::string second = MakeCertificates("second");
  const auto put = [this](const std::string& own, const std::vector<std::string>& trusted,
                          const std::string& name) {
    std::string cas;
    for (const std::string& folder : trusted) {
      cas += *ReadFile(folder + "/ca.crt");
    }
    for (const Role role : kRoles) {
      const std::string from = fmt::format("{}/{}", own, RoleName(role));
      const KeyAndCertificate pem = {*ReadFile(from + "/tls.key"), *ReadFile(from + "/tls.crt")};
      EXPECT_TRUE(
          WriteRoleFolder(fmt::format("{}/{}", folder_ / name, RoleName(role)), pem, cas).ok());
    }
    PointTo(folder_ / "current", folder_ / name);
  };
  put(certificates_, {certificates_}, "start");
  const auto server = ServeCoordinator(Of(Role::kCoordinator, folder_ / "current"));
  const Security client = Of(Role::kClient, folder_ / "current");
  const auto standing = Channel::Create(AddressOf(*server), client, Role::kCoordinator);
  const auto stands = [&] {
    return absl::IsUnknown(standing->Call(&CoordinatorService::GetStatus, {}).status());
  };
  const Security first_client = Of(Role::kClient);
  const Security second_client = Of(Role::kClient, second);
  ASSERT_TRUE(stands());
  EXPECT_REFUSED(Ask(*server, second_client), "is of a foreign CA");

  put(certificates_, {certificates_, second}, "both");
  // Who has the new CA alone does not know the server's certificate yet.
  EXPECT_REFUSED(Ask(*server, second_client), "is of a foreign CA");
  absl::SleepFor(absl::Seconds(3));
  EXPECT_TRUE(stands());
  put(second, {certificates_, second}, "new");
  EXPECT_TRUE(Becomes([&] { return absl::IsUnknown(Ask(*server, second_client)); }));
  EXPECT_TRUE(stands());
  EXPECT_TRUE(absl::IsUnknown(Ask(*server, client)));

  put(second, {second}, "end");
  EXPECT_TRUE(Becomes([&] {
    const KeyAndCertificate old = {*ReadFile(certificates_ + "/worker/tls.key"),
                                   *ReadFile(certificates_ + "/worker/tls.crt")};
    return !Connects(*server, old);
  }));
  EXPECT_TRUE(stands());
  EXPECT_TRUE(Becomes([&] { return absl::IsUnknown(Ask(*server, client)); }));
  EXPECT_FALSE(absl::IsUnknown(Ask(*server, first_client)));
}

}  // namespace
}  // namespace shoal::rpc

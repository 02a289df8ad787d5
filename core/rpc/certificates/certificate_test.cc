// Certificates as files and as peers show them: which are good, and what is said of those that are
// not.
#include "core/rpc/certificates/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/rpc/certificates/certificate_files.h"
#include "core/rpc/certificates/certificate_folder.h"
#include "core/rpc/certificates/certificate_watch.h"
#include "core/rpc/certificates/openssl_types.h"
#include "core/rpc/testing/reloaded.h"

namespace shoal::rpc {
namespace {

using ::testing::HasSubstr;

TEST(Identity, IsReadAsItIsWritten) {
  for (const Role role : kRoles) {
    const Identity identity = {"reef.example", "team-a", role};
    EXPECT_EQ(*ParseIdentity(UriOf(identity)), identity);
  }
  EXPECT_EQ(UriOf({.name_space = "demo", .role = Role::kServer}),
            "spiffe://shoal.local/ns/demo/sa/shoal-server");
  for (const char* wrong :
       {"", "spiffe://", "spiffe://shoal.local/ns/demo/sa/shoal-", "https://shoal.local/ns/demo",
        "spiffe://shoal.local/ns/demo/sa/shoal-root", "spiffe://shoal.local/ns/demo/sa/server",
        "spiffe://shoal.local/ns//sa/shoal-server", "spiffe:///ns/demo/sa/shoal-server",
        "spiffe://shoal.local/ns/demo/sa/shoal-server/more",
        "spiffe://shoal.local/ns/demo/more/sa/shoal-server",
        "spiffe://shoal.local/ns/Demo\n/sa/shoal-server"}) {
    EXPECT_FALSE(ParseIdentity(wrong).ok()) << wrong;
  }
}

class CertificateTest : public ::testing::Test {
 protected:
  std::shared_ptr<const TrustedCas> Trusting(const CertificateMaker& maker) const {
    return *TrustedCas::Parse(maker.Pem()->certificate);
  }
  // What is wrong with a certificate, at now_.
  std::string Refusal(const CertificateMaker& maker, const Validity& validity) const {
    const auto checked =
        Trusting(*ca_)->Check(maker.Issue(server_, validity)->certificate, "", Side::kServer, now_);
    EXPECT_TRUE(absl::IsUnauthenticated(checked.status())) << checked.status();
    return std::string(Message(checked.status()));
  }
  // A good folder, for tests that spoil it.
  std::string MakeFolder(const std::string& name) {
    EXPECT_TRUE(
        WriteRoleFolder(folder_ / name, *ca_->Issue(server_, good_), ca_->Pem()->certificate).ok());
    return folder_ / name;
  }
  absl::StatusOr<Certificates> Read(const std::string& folder, Role role = Role::kServer,
                                    const std::string& domain = kDefaultDomain) const {
    return ReadCertificates(PathsOf(folder, role), role, domain, now_);
  }

  TemporaryFolder folder_;
  const absl::Time now_ = absl::FromUnixSeconds(absl::ToUnixSeconds(WallTime()));
  const Validity good_ = {now_ - absl::Hours(1), now_ + absl::Hours(24)};
  const Identity server_ = {.name_space = "demo", .role = Role::kServer};
  const std::unique_ptr<CertificateMaker> ca_ = *CertificateMaker::Create(good_);
};

TEST_F(CertificateTest, AGoodOneSaysWhoItIsAndUntilWhen) {
  const auto issued = ca_->Issue(server_, {now_, now_ + absl::Hours(2)});
  for (const Side side : {Side::kClient, Side::kServer}) {
    const auto checked = Trusting(*ca_)->Check(issued->certificate, "", side, now_);
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_EQ(checked->identity, server_);
    EXPECT_EQ(checked->begins, now_);
    EXPECT_EQ(checked->ends, now_ + absl::Hours(2));
    EXPECT_EQ(checked->ca_ends, good_.ends);
  }
}

TEST_F(CertificateTest, OthersAreRefusedByWhatIsWrong) {
  EXPECT_THAT(Refusal(*ca_, {now_ - absl::Hours(2), now_ - absl::Seconds(1)}),
              HasSubstr("spiffe://shoal.local/ns/demo/sa/shoal-server has expired: it ended on 2"));
  EXPECT_THAT(Refusal(*ca_, {now_ + absl::Seconds(1), now_ + absl::Hours(2)}),
              HasSubstr("shoal-server is not valid yet: it begins on 2"));
  const auto stranger = CertificateMaker::Create(good_);
  EXPECT_THAT(Refusal(**stranger, good_), HasSubstr("is of a foreign CA, not of one in ca.crt"));
  // The CA's own is for signing alone.
  EXPECT_REFUSED(Trusting(*ca_)->Check(ca_->Pem()->certificate, "", Side::kServer, now_).status(),
                 "unsuitable certificate purpose");
  for (const char* nothing :
       {"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}) {
    EXPECT_REFUSED(Trusting(*ca_)->Check(nothing, nothing, Side::kClient, now_).status(),
                   "it shows no certificate");
  }
}

// A certificate of that CA with other alternative names: "URI:one,URI:two"; empty: none.
std::string WithNames(const CertificateMaker& ca, const std::string& certificate,
                      const std::string& names) {
  const auto bio_of = [](const std::string& pem) {
    return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  };
  const X509Ptr x(PEM_read_bio_X509(bio_of(certificate).get(), nullptr, nullptr, nullptr));
  const std::string key_pem = ca.Pem()->key;
  const Key key(PEM_read_bio_PrivateKey(bio_of(key_pem).get(), nullptr, nullptr, nullptr));
  const int at = X509_get_ext_by_NID(x.get(), NID_subject_alt_name, -1);
  X509_EXTENSION_free(X509_delete_ext(x.get(), at));
  if (!names.empty()) {
    X509_EXTENSION* const extension =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, names.c_str());
    EXPECT_EQ(X509_add_ext(x.get(), extension, -1), 1);
    X509_EXTENSION_free(extension);
  }
  EXPECT_GT(X509_sign(x.get(), key.get(), EVP_sha256()), 0);
  const Bio out(BIO_new(BIO_s_mem()));
  EXPECT_EQ(PEM_write_bio_X509(out.get(), x.get()), 1);
  char* text = nullptr;
  const auto size = static_cast<size_t>(BIO_get_mem_data(out.get(), &text));
  return {text, size};
}

TEST_F(CertificateTest, WhoeverHasNotOneNameAloneIsNobody) {
  const std::string issued = ca_->Issue(server_, good_)->certificate;
  const std::string name = "URI:" + UriOf(server_);
  const auto check = [&](const std::string& names) {
    return Trusting(*ca_)->Check(WithNames(*ca_, issued, names), "", Side::kServer, now_).status();
  };
  ASSERT_OK(check(name));
  ASSERT_OK(check(name + ",DNS:server.example"));
  for (const std::string& names :
       {std::string(), std::string("DNS:server.example"), fmt::format("{0},{0}", name),
        name + ",URI:spiffe://shoal.local/ns/demo/sa/shoal-worker"}) {
    EXPECT_REFUSED(check(names), "has not exactly one URI name");
  }
}

TEST_F(CertificateTest, ACaThatHasEndedIsNamed) {
  const auto old = CertificateMaker::Create({now_ - absl::Hours(9), now_ - absl::Hours(1)});
  const auto checked =
      Trusting(**old)->Check((*old)->Issue(server_, good_)->certificate, "", Side::kServer, now_);
  EXPECT_REFUSED(checked.status(), "/CN=Shoal CA ");
  EXPECT_THAT(std::string(Message(checked.status())), HasSubstr("has expired"));
}

TEST_F(CertificateTest, TwoCasInOneFileAreBothTrusted) {
  const auto other = CertificateMaker::Create(good_);
  const auto both = TrustedCas::Parse(ca_->Pem()->certificate + (*other)->Pem()->certificate);
  for (const CertificateMaker* maker : {ca_.get(), other->get()}) {
    EXPECT_TRUE(
        (*both)->Check(maker->Issue(server_, good_)->certificate, "", Side::kClient, now_).ok());
  }
}

TEST_F(CertificateTest, AFolderThatIsNotGoodIsRefusedByFile) {
  const std::string folder = MakeFolder("good");
  ASSERT_TRUE(Read(folder).ok()) << Read(folder).status();
  EXPECT_REFUSED(Read(folder, Role::kWorker).status(),
                 "tls.crt: it is a server's certificate, not a worker's");
  EXPECT_REFUSED(Read(folder, Role::kServer, "other.local").status(),
                 "tls.crt: its domain is shoal.local, not other.local (--tls-domain)");
  EXPECT_REFUSED(Read(folder_ / "absent").status(), "absent/tls.crt");

  const auto expired = ca_->Issue(server_, {now_ - absl::Hours(2), now_ - absl::Hours(1)});
  ASSERT_OK(WriteRoleFolder(folder_ / "expired", *expired, ca_->Pem()->certificate));
  EXPECT_REFUSED(Read(folder_ / "expired").status(), "expired/tls.crt: the certificate of");

  const auto stranger = CertificateMaker::Create(good_);
  ASSERT_OK(WriteRoleFolder(folder_ / "foreign", *ca_->Issue(server_, good_),
                            (*stranger)->Pem()->certificate));
  EXPECT_REFUSED(Read(folder_ / "foreign").status(), "foreign/tls.crt: the certificate of");

  KeyAndCertificate mixed = *ca_->Issue(server_, good_);
  mixed.key = ca_->Issue(server_, good_)->key;
  ASSERT_OK(WriteRoleFolder(folder_ / "mixed", mixed, ca_->Pem()->certificate));
  EXPECT_REFUSED(Read(folder_ / "mixed").status(),
                 "mixed/tls.key: it is not the key of the certificate beside it");

  ASSERT_OK(WriteRoleFolder(folder_ / "no-ca", *ca_->Issue(server_, good_), "nonsense"));
  EXPECT_REFUSED(Read(folder_ / "no-ca").status(), "no-ca/ca.crt: there is no certificate in it");
  ASSERT_OK(WriteRoleFolder(folder_ / "no-key",
                            {"nonsense", ca_->Issue(server_, good_)->certificate},
                            ca_->Pem()->certificate));
  EXPECT_REFUSED(Read(folder_ / "no-key").status(), "no-key/tls.key: it is not a private key");
}

TEST_F(CertificateTest, AFolderOfAllRolesServesEach) {
  const CertificateFolderOptions options = {
      .folder = folder_ / "all", .name_space = "team", .ca = good_, .roles = good_};
  ASSERT_OK(MakeCertificateFolder(options));
  for (const Role role : kRoles) {
    const auto read = Read(options.folder, role);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->own.identity, (Identity{kDefaultDomain, "team", role}));
    struct stat key {};
    ASSERT_EQ(stat(PathsOf(options.folder, role).key.c_str(), &key), 0);
    EXPECT_EQ(key.st_mode & 0777, 0600U);
  }
  EXPECT_TRUE(absl::IsAlreadyExists(MakeCertificateFolder(options)));

  CertificateFolderOptions second = options;
  second.folder = folder_ / "second/";
  second.ca_from = options.folder;
  ASSERT_OK(MakeCertificateFolder(second));
  EXPECT_EQ(*ReadFile(second.folder + "/ca.crt"), *ReadFile(options.folder + "/ca.crt"));
  EXPECT_NE(*ReadFile(second.folder + "/server/tls.key"),
            *ReadFile(options.folder + "/server/tls.key"));

  second.folder = folder_ / "third";
  second.ca_from = folder_ / "absent";
  EXPECT_REFUSED(MakeCertificateFolder(second), "absent/ca.key");
  second.name_space = "No Name";
  EXPECT_REFUSED(MakeCertificateFolder(second), "No Name");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "third"));
}

TEST(EndsSoon, InTheLastQuarter) {
  const absl::Time begin = absl::UnixEpoch();
  const absl::Time end = begin + absl::Hours(100);
  EXPECT_FALSE(EndsSoon(begin, end, begin));
  EXPECT_FALSE(EndsSoon(begin, end, begin + absl::Hours(75)));
  EXPECT_TRUE(EndsSoon(begin, end, begin + absl::Hours(75) + absl::Seconds(1)));
  EXPECT_TRUE(EndsSoon(begin, end, end + absl::Hours(1)));
}

class CertificateWatchTest : public CertificateTest {
 protected:
  // Replaces what `watched` stands for.
  void Put(const std::string& folder) { PointTo(folder_ / "watched", folder); }
  std::shared_ptr<CertificateWatch> Start() {
    auto watch = CertificateWatch::Start({.paths = PathsOf(folder_ / "watched", Role::kServer),
                                          .domain = kDefaultDomain,
                                          .role = Role::kServer,
                                          .interval = absl::Milliseconds(10)},
                                         &metrics_);
    EXPECT_TRUE(watch.ok()) << watch.status();
    return *watch;
  }
  absl::Status Peer(const CertificateWatch& watch, const CertificateMaker& maker,
                    Identity peer) const {
    peer.role = Role::kWorker;
    return watch.CheckPeer(maker.Issue(peer, good_)->certificate, "", Side::kClient).status();
  }

  double Reloads(const char* result) {
    return metrics_.counter("shoal_tls_reloads_total", "", {{"result", result}}).Value();
  }

  Metrics metrics_;
};

TEST_F(CertificateWatchTest, PeersAreOfOneDomainAndNamespace) {
  Put(MakeFolder("first"));
  const auto watch = Start();
  EXPECT_TRUE(Peer(*watch, *ca_, server_).ok());
  EXPECT_REFUSED(Peer(*watch, *ca_, {.name_space = "other"}),
                 "spiffe://shoal.local/ns/other/sa/shoal-worker is not of namespace demo");
  EXPECT_REFUSED(Peer(*watch, *ca_, {.domain = "other.local", .name_space = "demo"}),
                 "spiffe://other.local/ns/demo/sa/shoal-worker is not of domain shoal.local");
}

TEST_F(CertificateWatchTest, TakesNewFilesAndKeepsTheOldWhereTheyAreBad) {
  Put(MakeFolder("first"));
  const auto watch = Start();
  const auto second = CertificateMaker::Create(good_);
  const std::string metric = "shoal_tls_certificate_expiry_timestamp_seconds{kind=\"identity\"} ";
  EXPECT_THAT(metrics_.Text(), HasSubstr(metric));
  EXPECT_FALSE(Peer(*watch, **second, server_).ok());

  std::filesystem::create_directory(folder_ / "bad");
  Put(folder_ / "bad");
  EXPECT_TRUE(Becomes([&] { return Reloads("failure") == 1; }));
  EXPECT_TRUE(Peer(*watch, *ca_, server_).ok());

  const absl::Time ends = now_ + absl::Hours(12);
  ASSERT_OK(WriteRoleFolder(folder_ / "second", *(*second)->Issue(server_, {good_.begins, ends}),
                            (*second)->Pem()->certificate));
  Put(folder_ / "second");
  EXPECT_TRUE(Becomes([&] { return Peer(*watch, **second, server_).ok(); }));
  EXPECT_TRUE(Becomes([&] { return Reloads("success") == 1; }));
  EXPECT_EQ(Reloads("failure"), 1);
  EXPECT_FALSE(Peer(*watch, *ca_, server_).ok());
  EXPECT_THAT(metrics_.Text(), HasSubstr(metric + fmt::format("{}", absl::ToUnixSeconds(ends))));
}

}  // namespace
}  // namespace shoal::rpc

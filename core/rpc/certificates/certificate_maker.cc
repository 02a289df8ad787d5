#include "core/rpc/certificates/certificate_maker.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "core/base/random.h"
#include "core/base/status.h"
#include "core/rpc/certificates/openssl_types.h"

namespace shoal::rpc {
namespace {

absl::Status OpensslFailed(const char* what) { return Internal("{}: {}", what, OpensslError()); }

absl::StatusOr<Key> NewKey() {
  Key key(EVP_EC_gen("P-256"));
  if (key == nullptr) {
    return OpensslFailed("making a key");
  }
  return key;
}

bool SetSerial(X509* certificate) {
  const std::unique_ptr<BIGNUM, FreeBy<BN_free>> number(BN_new());
  return BN_rand(number.get(), 127, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetTimes(X509* certificate, const Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(validity.begins)) !=
             nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(validity.ends)) != nullptr;
}

bool AddName(X509* certificate, const std::string& name) {
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1,
                                    0) == 1;
}

// `value` as openssl.cnf has it.
bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, FreeBy<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// Without issuer and signature.
absl::StatusOr<X509Ptr> BeginCertificate(const std::string& name, const Validity& validity,
                                         EVP_PKEY* key) {
  X509Ptr certificate(X509_new());
  X509* const x = certificate.get();
  if (x == nullptr || X509_set_version(x, X509_VERSION_3) != 1 || !SetSerial(x) ||
      !SetTimes(x, validity) || !AddName(x, name) || X509_set_pubkey(x, key) != 1) {
    return OpensslFailed("making a certificate");
  }
  return certificate;
}

template <typename Write>
absl::StatusOr<std::string> ToPem(Write write) {
  const Bio bio(BIO_new(BIO_s_mem()));
  char* text = nullptr;
  if (write(bio.get()) != 1) {
    return OpensslFailed("writing PEM");
  }
  const auto size = static_cast<size_t>(BIO_get_mem_data(bio.get(), &text));
  return std::string(text, size);
}

absl::StatusOr<KeyAndCertificate> ToPem(EVP_PKEY* key, X509* certificate) {
  KeyAndCertificate pem;
  SHOAL_ASSIGN_OR_RETURN(pem.key, ToPem([key](BIO* bio) {
                           return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr,
                                                           nullptr);
                         }));
  SHOAL_ASSIGN_OR_RETURN(pem.certificate, ToPem([certificate](BIO* bio) {
                           return PEM_write_bio_X509(bio, certificate);
                         }));
  return pem;
}

}  // namespace

struct CertificateMaker::Ca {
  Key key;
  X509Ptr certificate;
};

CertificateMaker::CertificateMaker(std::unique_ptr<Ca> ca) : ca_(std::move(ca)) {}
CertificateMaker::~CertificateMaker() = default;

absl::StatusOr<std::unique_ptr<CertificateMaker>> CertificateMaker::Create(
    const Validity& validity) {
  auto ca = std::make_unique<Ca>();
  SHOAL_ASSIGN_OR_RETURN(ca->key, NewKey());
  // A name of its own: two CAs in one file are told apart.
  SHOAL_ASSIGN_OR_RETURN(ca->certificate, BeginCertificate("Shoal CA " + SecureToken().substr(0, 8),
                                                           validity, ca->key.get()));
  X509* const x = ca->certificate.get();
  if (X509_set_issuer_name(x, X509_get_subject_name(x)) != 1 ||
      !AddExtension(x, x, NID_basic_constraints, "critical,CA:TRUE") ||
      !AddExtension(x, x, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(x, x, NID_subject_key_identifier, "hash") ||
      X509_sign(x, ca->key.get(), EVP_sha256()) == 0) {
    return OpensslFailed("making a CA");
  }
  return std::unique_ptr<CertificateMaker>(new CertificateMaker(std::move(ca)));
}

absl::StatusOr<std::unique_ptr<CertificateMaker>> CertificateMaker::Open(
    const KeyAndCertificate& ca) {
  const Bio key(BIO_new_mem_buf(ca.key.data(), static_cast<int>(ca.key.size())));
  const Bio certificate(
      BIO_new_mem_buf(ca.certificate.data(), static_cast<int>(ca.certificate.size())));
  auto opened = std::make_unique<Ca>();
  opened->key.reset(PEM_read_bio_PrivateKey(key.get(), nullptr, nullptr, nullptr));
  opened->certificate.reset(PEM_read_bio_X509(certificate.get(), nullptr, nullptr, nullptr));
  const bool is_ca = opened->key != nullptr && opened->certificate != nullptr &&
                     X509_check_private_key(opened->certificate.get(), opened->key.get()) == 1 &&
                     X509_check_ca(opened->certificate.get()) > 0;
  ERR_clear_error();
  if (!is_ca) {
    return InvalidArgument("they are not the key and certificate of one CA");
  }
  return std::unique_ptr<CertificateMaker>(new CertificateMaker(std::move(opened)));
}

absl::StatusOr<KeyAndCertificate> CertificateMaker::Pem() const {
  return ToPem(ca_->key.get(), ca_->certificate.get());
}

absl::StatusOr<KeyAndCertificate> CertificateMaker::Issue(const Identity& identity,
                                                          const Validity& validity) const {
  SHOAL_ASSIGN_OR_RETURN(const Key key, NewKey());
  SHOAL_ASSIGN_OR_RETURN(
      const X509Ptr certificate,
      BeginCertificate(fmt::format("shoal-{}", RoleName(identity.role)), validity, key.get()));
  X509* const x = certificate.get();
  X509* const issuer = ca_->certificate.get();
  if (X509_set_issuer_name(x, X509_get_subject_name(issuer)) != 1 ||
      !AddExtension(x, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(x, issuer, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(x, issuer, NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(x, issuer, NID_subject_key_identifier, "hash") ||
      !AddExtension(x, issuer, NID_authority_key_identifier, "keyid") ||
      !AddExtension(x, issuer, NID_subject_alt_name, "URI:" + UriOf(identity)) ||
      X509_sign(x, ca_->key.get(), EVP_sha256()) == 0) {
    return OpensslFailed("making a certificate");
  }
  return ToPem(key.get(), x);
}

}  // namespace shoal::rpc

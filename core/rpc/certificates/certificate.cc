#include "core/rpc/certificates/certificate.h"

#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <vector>

#include "core/base/status.h"
#include "core/rpc/certificates/openssl_types.h"

namespace shoal::rpc {
namespace {

struct FreeStack {
  // The certificates in it belong to others.
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};
struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

Bio ReadOnly(std::string_view text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::vector<X509Ptr> ParseCertificates(std::string_view pem) {
  std::vector<X509Ptr> certificates;
  const Bio bio = ReadOnly(pem);
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();  // the end of the text is one
  return certificates;
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm fields = {};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? absl::FromTM(fields, absl::UTCTimeZone())
                                             : absl::InfinitePast();
}

std::string FormatDate(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

// Its SPIFFE name, of which it must have one and no other.
std::string UriNameOf(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) {
      const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
      uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                        static_cast<size_t>(ASN1_STRING_length(uri)));
    }
  }
  return uris.size() == 1 ? uris.front() : "";
}

// For messages: its SPIFFE name, or else whose it is. What a stranger wrote stays short.
std::string WhoseIs(X509* certificate) {
  const absl::StatusOr<Identity> identity = ParseIdentity(UriNameOf(certificate));
  if (identity.ok()) {
    return UriOf(*identity);
  }
  char subject[128] = {};
  X509_NAME_oneline(X509_get_subject_name(certificate), subject, sizeof(subject));
  return subject;
}

absl::Status Explain(int error, X509* certificate) {
  const std::string whose = WhoseIs(certificate);
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Unauthenticated("the certificate of {} has expired: it ended on {}", whose,
                             FormatDate(TimeOf(X509_get0_notAfter(certificate))));
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Unauthenticated("the certificate of {} is not valid yet: it begins on {}", whose,
                             FormatDate(TimeOf(X509_get0_notBefore(certificate))));
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return Unauthenticated("the certificate of {} is of a foreign CA, not of one in ca.crt ({})",
                             whose, X509_verify_cert_error_string(error));
    default:
      return Unauthenticated("the certificate of {} is refused: {}", whose,
                             X509_verify_cert_error_string(error));
  }
}

}  // namespace

TrustedCas::TrustedCas(X509_STORE* store) : store_(store, X509_STORE_free) {}

absl::StatusOr<std::shared_ptr<const TrustedCas>> TrustedCas::Parse(std::string_view pem) {
  const std::vector<X509Ptr> certificates = ParseCertificates(pem);
  if (certificates.empty()) {
    return InvalidArgument("there is no certificate in it");
  }
  std::shared_ptr<TrustedCas> cas(new TrustedCas(X509_STORE_new()));
  // Each is trusted by itself, be it a root or signed by another.
  X509_STORE_set_flags(cas->store_.get(), X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST);
  for (const X509Ptr& certificate : certificates) {
    X509_STORE_add_cert(cas->store_.get(), certificate.get());
  }
  return cas;
}

absl::StatusOr<Certified> TrustedCas::Check(std::string_view certificate, std::string_view chain,
                                            Side side, absl::Time now) const {
  const std::vector<X509Ptr> shown = ParseCertificates(certificate);
  if (shown.empty()) {
    return Unauthenticated("it shows no certificate");
  }
  X509* const leaf = shown.front().get();
  std::vector<X509Ptr> others = ParseCertificates(chain);
  const std::unique_ptr<STACK_OF(X509), FreeStack> untrusted(sk_X509_new_null());
  for (const X509Ptr& other : others) {
    sk_X509_push(untrusted.get(), other.get());
  }
  const std::unique_ptr<X509_STORE_CTX, FreeBy<X509_STORE_CTX_free>> context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store_.get(), leaf, untrusted.get());
  X509_STORE_CTX_set_default(context.get(), side == Side::kClient ? "ssl_client" : "ssl_server");
  X509_VERIFY_PARAM_set_time(X509_STORE_CTX_get0_param(context.get()), absl::ToTimeT(now));
  if (X509_verify_cert(context.get()) != 1) {
    X509* const at = X509_STORE_CTX_get_current_cert(context.get());
    const absl::Status status =
        Explain(X509_STORE_CTX_get_error(context.get()), at == nullptr ? leaf : at);
    ERR_clear_error();
    return status;
  }
  const absl::StatusOr<Identity> identity = ParseIdentity(UriNameOf(leaf));
  if (!identity.ok()) {
    return Unauthenticated("the certificate of {} has not exactly one URI name, or {}",
                           WhoseIs(leaf), Message(identity.status()));
  }
  STACK_OF(X509)* const found = X509_STORE_CTX_get0_chain(context.get());
  return Certified{
      .identity = *identity,
      .begins = TimeOf(X509_get0_notBefore(leaf)),
      .ends = TimeOf(X509_get0_notAfter(leaf)),
      .ca_ends = TimeOf(X509_get0_notAfter(sk_X509_value(found, sk_X509_num(found) - 1)))};
}

absl::Status CheckKey(std::string_view certificate, std::string_view key) {
  const std::vector<X509Ptr> certificates = ParseCertificates(certificate);
  const Bio bio = ReadOnly(key);
  const Key parsed(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  if (parsed == nullptr) {
    return InvalidArgument("it is not a private key ({})", OpensslError());
  }
  if (certificates.empty() ||
      X509_check_private_key(certificates.front().get(), parsed.get()) != 1) {
    ERR_clear_error();
    return InvalidArgument("it is not the key of the certificate beside it");
  }
  return absl::OkStatus();
}

}  // namespace shoal::rpc

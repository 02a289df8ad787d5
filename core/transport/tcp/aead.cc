#include "core/transport/tcp/aead.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include "core/base/check.h"

namespace shoal::transport {
namespace {

const unsigned char* Bytes(const void* data) { return static_cast<const unsigned char*>(data); }
unsigned char* Bytes(void* data) { return static_cast<unsigned char*>(data); }

}  // namespace

void Aead::FreeContext::operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }

Aead::Aead(std::string_view key) : context_(EVP_CIPHER_CTX_new()) {
  SHOAL_CHECK(key.size() == kAeadKeyBytes);
  SHOAL_CHECK(EVP_CipherInit_ex(context_.get(), EVP_aes_128_gcm(), nullptr, Bytes(key.data()),
                                nullptr, /*enc=*/1) == 1);
}

void Aead::Begin(const Nonce& nonce, std::span<const std::byte> associated, bool seal) {
  int written = 0;
  SHOAL_CHECK(EVP_CipherInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data(),
                                seal ? 1 : 0) == 1);
  SHOAL_CHECK(EVP_CipherUpdate(context_.get(), nullptr, &written, Bytes(associated.data()),
                               static_cast<int>(associated.size())) == 1);
}

void Aead::Seal(const Nonce& nonce, std::span<const std::byte> associated,
                std::span<const iovec> parts, std::span<std::byte> sealed) {
  Begin(nonce, associated, /*seal=*/true);
  unsigned char* out = Bytes(sealed.data());
  const unsigned char* const tag = out + sealed.size() - kAeadTagBytes;
  int written = 0;
  for (const iovec& part : parts) {
    SHOAL_CHECK(part.iov_len <= static_cast<size_t>(tag - out));
    SHOAL_CHECK(EVP_CipherUpdate(context_.get(), out, &written, Bytes(part.iov_base),
                                 static_cast<int>(part.iov_len)) == 1);
    out += part.iov_len;
  }
  SHOAL_CHECK(out == tag);
  SHOAL_CHECK(EVP_CipherFinal_ex(context_.get(), out, &written) == 1);
  SHOAL_CHECK(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kAeadTagBytes, out) == 1);
}

bool Aead::Open(const Nonce& nonce, std::span<const std::byte> associated,
                std::span<std::byte> sealed) {
  SHOAL_CHECK(sealed.size() >= kAeadTagBytes);
  Begin(nonce, associated, /*seal=*/false);
  unsigned char* const bytes = Bytes(sealed.data());
  const size_t size = sealed.size() - kAeadTagBytes;
  int written = 0;
  SHOAL_CHECK(EVP_CipherUpdate(context_.get(), bytes, &written, bytes, static_cast<int>(size)) ==
              1);
  SHOAL_CHECK(
      EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kAeadTagBytes, bytes + size) == 1);
  return EVP_CipherFinal_ex(context_.get(), bytes + size, &written) == 1;
}

std::string Hkdf(std::string_view secret, std::string_view salt, std::string_view info,
                 size_t bytes) {
  const auto parameter = [](const char* name, std::string_view value) {
    return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
  };
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      parameter(OSSL_KDF_PARAM_KEY, secret), parameter(OSSL_KDF_PARAM_SALT, salt),
      parameter(OSSL_KDF_PARAM_INFO, info), OSSL_PARAM_construct_end()};
  EVP_KDF* const hkdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = EVP_KDF_CTX_new(hkdf);
  std::string derived(bytes, '\0');
  SHOAL_CHECK(EVP_KDF_derive(context, Bytes(derived.data()), bytes, parameters) == 1);
  EVP_KDF_CTX_free(context);
  EVP_KDF_free(hkdf);
  return derived;
}

std::string RandomSecret(size_t bytes) {
  std::string secret(bytes, '\0');
  SHOAL_CHECK(RAND_bytes(Bytes(secret.data()), static_cast<int>(bytes)) == 1);
  return secret;
}

}  // namespace shoal::transport

// SPDX-License-Identifier: Apache-2.0
#include <openssl/evp.h>

#include <memory>

#include "models/export/onnx/graph.h"
#include "models/nn/lazy.h"

namespace xylem::exporting {

std::string weights_hash(const OnnxGraph& graph) {
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> hash(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  bool good = hash && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1;
  for (const auto& [name, t] : graph.initializers) {
    good = good && EVP_DigestUpdate(hash.get(), name.data(), name.size()) == 1;
    if (t.data.numel()) good = good && EVP_DigestUpdate(hash.get(), t.data.raw(), t.data.nbytes()) == 1;
    forget_lazy_values();
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned bytes = 0;
  good = good && EVP_DigestFinal_ex(hash.get(), digest, &bytes) == 1;
  XY_CHECK(good, "OpenSSL cannot compute a SHA-256 of the weights; does its configuration forbid it?");
  static const char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (unsigned i = 0; i < bytes; ++i) {
    hex += kDigits[digest[i] >> 4];
    hex += kDigits[digest[i] & 15];
  }
  return hex;
}

}  // namespace xylem::exporting

// SPDX-License-Identifier: Apache-2.0
#include "data/image.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/util/check.h"
#include "core/util/file.h"

#ifdef XY_WITH_IMAGES
#include <csetjmp>
#include <cstdio>

#include <jerror.h>
#include <jpeglib.h>
#include <png.h>
#endif

namespace xylem {

#ifdef XY_WITH_IMAGES
namespace {

constexpr int64_t kMaxPixels = int64_t(1) << 28;

// libjpeg reports errors by a callback that must not return: it jumps back to decode_jpeg or write_jpeg, which hold no
// objects with destructors.
struct JpegErrors {
  jpeg_error_mgr base;
  jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
  bool damaged;
};
[[noreturn]] void jpeg_fail(j_common_ptr codec) {
  auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
  codec->err->format_message(codec, errors->text);
  longjmp(errors->jump, 1);
}
// libjpeg fills what is missing with grey and only warns; a dataset should not hold such images.
void jpeg_warn(j_common_ptr codec, int level) {
  auto* errors = reinterpret_cast<JpegErrors*>(codec->err);
  int code = codec->err->msg_code;
  if (level >= 0 || (code != JWRN_HIT_MARKER && code != JWRN_JPEG_EOF && code != JWRN_HUFF_BAD_CODE)) return;
  codec->err->format_message(codec, errors->text);
  errors->damaged = true;
}
jpeg_error_mgr* jpeg_errors(JpegErrors& errors) {
  jpeg_std_error(&errors.base);
  errors.base.error_exit = jpeg_fail;
  errors.base.emit_message = jpeg_warn;
  errors.damaged = false;
  return &errors.base;
}

bool decode_jpeg(const void* bytes, size_t size, int64_t channels, int64_t at_least, Image& image, JpegErrors& errors) {
  jpeg_decompress_struct codec;
  codec.err = jpeg_errors(errors);
  if (setjmp(errors.jump)) {
    jpeg_destroy_decompress(&codec);
    return false;
  }
  jpeg_create_decompress(&codec);
  jpeg_mem_src(&codec, static_cast<const unsigned char*>(bytes), size);
  jpeg_read_header(&codec, TRUE);
  bool four = codec.jpeg_color_space == JCS_CMYK || codec.jpeg_color_space == JCS_YCCK;
  codec.out_color_space = four ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  codec.scale_num = 1;
  int64_t shorter = std::min(codec.image_width, codec.image_height);
  for (codec.scale_denom = 8; codec.scale_denom > 1; codec.scale_denom /= 2)
    if (at_least > 0 && shorter / codec.scale_denom >= at_least) break;
  jpeg_start_decompress(&codec);
  image.height = codec.output_height, image.width = codec.output_width, image.channels = codec.output_components;
  if (image.height * image.width > kMaxPixels) ERREXIT1(&codec, JERR_IMAGE_TOO_BIG, 1 << 14);
  image.pixels.resize(size_t(image.height * image.width * image.channels));
  while (codec.output_scanline < codec.output_height) {
    JSAMPROW row = image.pixels.data() + size_t(codec.output_scanline) * size_t(image.width * image.channels);
    jpeg_read_scanlines(&codec, &row, 1);
  }
  bool inverted = four && codec.saw_Adobe_marker;
  jpeg_finish_decompress(&codec);
  jpeg_destroy_decompress(&codec);
  if (errors.damaged) return false;
  if (!four) return true;
  size_t pixels = size_t(image.height * image.width);
  for (size_t i = 0; i < pixels; ++i) {
    uint8_t* p = image.pixels.data() + 4 * i;
    int rgb[3], black = inverted ? p[3] : 255 - p[3];
    for (int c = 0; c < 3; ++c) rgb[c] = (inverted ? p[c] : 255 - p[c]) * black / 255;
    if (channels == 1)
      image.pixels[i] = uint8_t((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2]) / 1000);
    else
      for (size_t c = 0; c < 3; ++c) image.pixels[3 * i + c] = uint8_t(rgb[c]);
  }
  image.channels = channels;
  image.pixels.resize(pixels * size_t(channels));
  return true;
}

bool write_jpeg(FILE* file, const Image& image, JpegErrors& errors) {
  jpeg_compress_struct codec;
  codec.err = jpeg_errors(errors);
  if (setjmp(errors.jump)) {
    jpeg_destroy_compress(&codec);
    return false;
  }
  jpeg_create_compress(&codec);
  jpeg_stdio_dest(&codec, file);
  codec.image_width = JDIMENSION(image.width), codec.image_height = JDIMENSION(image.height);
  codec.input_components = int(image.channels);
  codec.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&codec);
  jpeg_set_quality(&codec, 95, TRUE);
  jpeg_start_compress(&codec, TRUE);
  while (codec.next_scanline < codec.image_height) {
    auto row =
        const_cast<JSAMPROW>(image.pixels.data() + size_t(codec.next_scanline) * size_t(image.width * image.channels));
    jpeg_write_scanlines(&codec, &row, 1);
  }
  jpeg_finish_compress(&codec);
  jpeg_destroy_compress(&codec);
  return true;
}

Image decode_png(const void* bytes, size_t size, const std::string& name, int64_t channels) {
  struct Png {
    png_image codec{};
    ~Png() { png_image_free(&codec); }
  } png;
  png.codec.version = PNG_IMAGE_VERSION;
  XY_CHECK(png_image_begin_read_from_memory(&png.codec, bytes, size), "cannot read ", name, ": ", png.codec.message);
  Image image{.height = png.codec.height, .width = png.codec.width, .channels = channels, .pixels = {}};
  XY_CHECK(image.height * image.width <= kMaxPixels, name, " is too large: ", image.width, " x ", image.height);
  image.pixels.resize(size_t(image.height * image.width * channels));
  png.codec.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_color black{};
  XY_CHECK(png_image_finish_read(&png.codec, &black, image.pixels.data(), 0, nullptr), "cannot read ", name, ": ",
           png.codec.message);
  // An image cut short may come with a warning alone.
  XY_CHECK(png.codec.warning_or_error == 0, name, " is damaged: ", png.codec.message);
  return image;
}

}  // namespace

bool built_with_images() { return true; }

Image decode_image(const void* bytes, size_t size, const std::string& name, int64_t channels, int64_t at_least) {
  XY_CHECK(channels == 1 || channels == 3, "images have 1 or 3 channels, not ", channels);
  auto* start = static_cast<const uint8_t*>(bytes);
  if (size >= 8 && png_sig_cmp(start, 0, 8) == 0) return decode_png(bytes, size, name, channels);
  XY_CHECK(size >= 3 && start[0] == 0xFF && start[1] == 0xD8, name, " is neither a JPEG nor a PNG image",
           size == 0 ? "; it is empty" : "");
  Image image;
  JpegErrors errors;
  XY_CHECK(decode_jpeg(bytes, size, channels, at_least, image, errors), name,
           " is damaged or truncated: ", errors.text);
  return image;
}

void write_image(const std::string& path, const Image& image) {
  XY_CHECK(image.channels == 1 || image.channels == 3, "images have 1 or 3 channels, not ", image.channels);
  if (path.ends_with(".png")) {
    png_image codec{};
    codec.version = PNG_IMAGE_VERSION;
    codec.width = png_uint_32(image.width), codec.height = png_uint_32(image.height);
    codec.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
    XY_CHECK(png_image_write_to_file(&codec, path.c_str(), 0, image.pixels.data(), 0, nullptr), "cannot write ", path,
             ": ", codec.message);
    return;
  }
  XY_CHECK(path.ends_with(".jpg") || path.ends_with(".jpeg"), "cannot write ", path, ": give it .png, .jpg or .jpeg");
  FILE* file = std::fopen(path.c_str(), "wb");
  XY_CHECK(file, "cannot write ", path, ": ", std::strerror(errno));
  JpegErrors errors;
  bool ok = write_jpeg(file, image, errors);
  bool closed = std::fclose(file) == 0;
  XY_CHECK(ok && closed, "cannot write ", path, ": ", ok ? std::strerror(errno) : errors.text);
}

#else

bool built_with_images() { return false; }
Image decode_image(const void*, size_t, const std::string& name, int64_t, int64_t) {
  XY_FAIL("cannot read ", name,
          ": this build of Xylem has no libjpeg and libpng; install libjpeg-dev and libpng-dev "
          "and build again");
}
void write_image(const std::string& path, const Image&) {
  XY_FAIL("cannot write ", path,
          ": this build of Xylem has no libjpeg and libpng; install libjpeg-dev and libpng-dev "
          "and build again");
}

#endif

Image read_image(const std::string& path, int64_t channels, int64_t at_least) {
  std::string bytes = read_file(path);
  return decode_image(bytes.data(), bytes.size(), path, channels, at_least);
}

namespace {

// Along one axis: which source pixels make up target pixel i, and their weights.
struct Taps {
  int64_t per_pixel;
  std::vector<int64_t> first, count;
  std::vector<float> weights;
  const float* of(int64_t i) const { return weights.data() + i * per_pixel; }
};

Taps triangle(int64_t from, int64_t to) {
  double step = double(from) / double(to), reach = std::max(1.0, step);
  Taps taps{.per_pixel = int64_t(2 * std::ceil(reach)) + 1, .first = {}, .count = {}, .weights = {}};
  taps.weights.resize(size_t(taps.per_pixel * to));
  for (int64_t i = 0; i < to; ++i) {
    double center = (double(i) + 0.5) * step, total = 0;
    int64_t begin = std::max<int64_t>(0, int64_t(std::floor(center - reach))), n = 0;
    float* w = taps.weights.data() + i * taps.per_pixel;
    while (begin < from - 1 && center - (double(begin) + 0.5) >= reach) ++begin;
    for (int64_t j = begin; j < from; ++j, ++n) {
      double weight = 1 - std::abs(double(j) + 0.5 - center) / reach;
      if (weight <= 0) break;
      w[n] = float(weight), total += weight;
    }
    for (int64_t k = 0; k < n; ++k) w[k] = float(w[k] / total);
    taps.first.push_back(begin), taps.count.push_back(n);
  }
  return taps;
}

}  // namespace

Image resize_image(const Image& image, int64_t height, int64_t width) {
  XY_CHECK(height > 0 && width > 0 && !image.pixels.empty(), "cannot resize ", image.width, " x ", image.height, " to ",
           width, " x ", height);
  int64_t channels = image.channels, line = width * channels;
  Taps across = triangle(image.width, width), down = triangle(image.height, height);
  std::vector<float> rows(size_t(image.height * line)), sum(static_cast<size_t>(line));
  for (int64_t y = 0; y < image.height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t* in = image.pixels.data() + (y * image.width + across.first[size_t(x)]) * channels;
      const float* w = across.of(x);
      float* out = rows.data() + y * line + x * channels;
      for (int64_t k = 0; k < across.count[size_t(x)]; ++k)
        for (int64_t c = 0; c < channels; ++c) out[c] += w[k] * float(in[k * channels + c]);
    }
  }
  Image result{.height = height, .width = width, .channels = channels, .pixels = {}};
  result.pixels.resize(size_t(height * line));
  for (int64_t y = 0; y < height; ++y) {
    std::fill(sum.begin(), sum.end(), 0.5f);  // rounds
    for (int64_t k = 0; k < down.count[size_t(y)]; ++k) {
      const float* in = rows.data() + (down.first[size_t(y)] + k) * line;
      float w = down.of(y)[k];
      for (int64_t x = 0; x < line; ++x) sum[size_t(x)] += w * in[x];
    }
    uint8_t* out = result.pixels.data() + y * line;
    for (int64_t x = 0; x < line; ++x) out[x] = uint8_t(std::min(sum[size_t(x)], 255.0f));
  }
  return result;
}

Image center_square(const Image& image) {
  int64_t side = std::min(image.height, image.width), top = (image.height - side) / 2, left = (image.width - side) / 2;
  Image square{.height = side, .width = side, .channels = image.channels, .pixels = {}};
  square.pixels.resize(size_t(side * side * image.channels));
  for (int64_t y = 0; y < side; ++y)
    std::memcpy(square.pixels.data() + y * side * image.channels,
                image.pixels.data() + ((top + y) * image.width + left) * image.channels, size_t(side * image.channels));
  return square;
}

}  // namespace xylem

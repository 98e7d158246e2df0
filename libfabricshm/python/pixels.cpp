#include "libfabricshm/python/pixels.hpp"

#include <string>
#include <string_view>

#include "kernels/pixels.hpp"

namespace fabricshm::python {

namespace py = pybind11;

namespace {

kernels::DType pixel_type(int code) {
    const auto type = static_cast<kernels::DType>(code);
    if (code < 0 || code >= kernels::kDTypeCount || !kernels::is_pixel_type(type)) {
        throw py::value_error("pixels become float32, float16 or bfloat16");
    }
    return type;
}

}  // namespace

py::bytes pixel_table(int type, float mean, float deviation) {
    const kernels::DType known = pixel_type(type);
    std::string table(kernels::kPixelValues * kernels::size_of(known), '\0');
    kernels::fill_pixel_table(known, mean, deviation, table.data());
    return py::bytes(table);
}

void map_pixels(const py::array& picture, int type, const py::bytes& tables, py::array& out,
                bool planes) {
    kernels::PixelJob job;
    job.type = pixel_type(type);
    const std::size_t size = kernels::size_of(job.type);
    const bool is_picture = picture.dtype().is(py::dtype::of<std::uint8_t>()) &&
                            picture.ndim() == 3 && picture.shape(2) >= 1 &&
                            picture.shape(2) <= kernels::kPixelChannelsMax &&
                            (picture.strides(2) == 1 || picture.shape(2) == 1) &&
                            picture.shape(0) < (1 << 24) && picture.shape(1) < (1 << 24);
    if (!is_picture) {
        throw py::value_error(
            "a picture is uint8 (height, width, channels), 1 to 4 channels that "
            "lie next to each other");
    }
    job.source = static_cast<const std::uint8_t*>(picture.data());
    job.row_stride = picture.strides(0);
    job.pixel_stride = picture.strides(1);
    job.height = static_cast<std::int32_t>(picture.shape(0));
    job.width = static_cast<std::int32_t>(picture.shape(1));
    job.channels = static_cast<std::int32_t>(picture.shape(2));
    job.planes = planes;
    const std::string_view given(tables);
    if (given.size() != size * kernels::kPixelValues * static_cast<std::size_t>(job.channels)) {
        throw py::value_error("the picture has " + std::to_string(job.channels) +
                              " channels, and mean and std have others");
    }
    job.tables = given.data();
    const bool fits =
        (out.flags() & py::array::c_style) != 0 &&
        static_cast<std::size_t>(out.nbytes()) == size * static_cast<std::size_t>(picture.size());
    if (!fits) throw py::value_error("out is not contiguous, or of another size than the picture");
    job.destination = out.mutable_data();
    const py::gil_scoped_release release;
    kernels::map_pixels(job);
}

}  // namespace fabricshm::python

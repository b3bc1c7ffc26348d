#pragma once

namespace hvdtune::faces::tensorflow {

/// Registers Horovod's operations with TensorFlow, all or none: names, attributes, shapes. Each
/// collective has a second type for eager mode, with "Eager" after its name, whose kernel waits.
/// After find_c_interface(). Throws Error(kInvalidArgument) with TensorFlow's reason. Once.
void define_operation_types();

/// Registers their kernels.
void register_kernels();

}  // namespace hvdtune::faces::tensorflow

// SPDX-License-Identifier: MIT OR GPL-2.0
// Stands in for nvidia.ko where there is no GPU: the calls that nvidia-uvm makes when it is loaded and unloaded.
// All others are made by xtask, one per symbol that nvidia-uvm.ko leaves open; they answer NV_ERR_NOT_SUPPORTED.
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/string.h>
#include "nvtypes.h"
#include "nvstatus.h"
#include "nv_uvm_types.h"

static int session;

NV_STATUS nvUvmInterfaceSessionCreate(uvmGpuSessionHandle *handle, UvmPlatformInfo *platform)
{
    // No ATS, no confidential computing.
    memset(platform, 0, sizeof(*platform));
    *handle = (uvmGpuSessionHandle)&session;
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceSessionCreate);

NV_STATUS nvUvmInterfaceSessionDestroy(uvmGpuSessionHandle handle)
{
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceSessionDestroy);

// The pair's name up to the 580 branch.
NV_STATUS nvUvmInterfaceRegisterUvmCallbacks(struct UvmOpsUvmEvents *ops)
{
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmCallbacks);

void nvUvmInterfaceDeRegisterUvmOps(void)
{
}
EXPORT_SYMBOL(nvUvmInterfaceDeRegisterUvmOps);

// The pair's name since the 590 branch.
NV_STATUS nvUvmInterfaceRegisterUvmEvents(void *events)
{
    return NV_OK;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmEvents);

void nvUvmInterfaceDeRegisterUvmEvents(void)
{
}
EXPORT_SYMBOL(nvUvmInterfaceDeRegisterUvmEvents);

// What the real module calls for every Xid. Its trace point, which newer drivers have, is in glake_xid_lab.ko.
void nv_report_error(struct pci_dev *dev, NvU32 code, const char *format, va_list arguments);
void (*glake_reported)(struct pci_dev *dev, NvU32 code, const char *text);
EXPORT_SYMBOL(glake_reported);

noinline void nv_report_error(struct pci_dev *dev, NvU32 code, const char *format, va_list arguments)
{
    char *text = kvasprintf(GFP_KERNEL, format, arguments);

    if (text && glake_reported)
        glake_reported(dev, code, text);
    kfree(text);
}
EXPORT_SYMBOL(nv_report_error);

static void report(struct pci_dev *dev, NvU32 code, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    nv_report_error(dev, code, format, arguments);
    va_end(arguments);
}

// `DOMAIN:BUS:DEVICE.FUNCTION CODE N`: N reports of a code on any PCI device.
static int report_set(const char *text, const struct kernel_param *parameter)
{
    unsigned domain, bus, device, function, code, n, i;
    struct pci_dev *dev;

    if (sscanf(text, "%x:%x:%x.%x %u %u", &domain, &bus, &device, &function, &code, &n) != 6)
        return -EINVAL;
    dev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(device, function));
    if (!dev)
        return -ENODEV;
    for (i = 0; i < n; i++)
        report(dev, code, "report %u of %u", i + 1, n);
    pci_dev_put(dev);
    return 0;
}

static const struct kernel_param_ops report_ops = { .set = report_set };
module_param_cb(report, &report_ops, NULL, 0200);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("Stands in for nvidia.ko in tests without a GPU");

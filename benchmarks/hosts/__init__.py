"""Several hosts on one machine, as network namespaces of Linux."""

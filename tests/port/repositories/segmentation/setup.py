import setuptools

setuptools.setup(name="seg", packages=setuptools.find_packages())
